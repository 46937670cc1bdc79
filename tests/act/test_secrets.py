"""Planted secrets are looked for everywhere they must not be: what is printed, sent as words, labelled, kept, noted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from machine import DATA, Desk
from measured_desk import RECIPE, measurable
from secret_cases import INNOCENT, SECRET
from typed import Typed

HUB, ENV, KEY = "hf_hub_planted_1", "hf_env_planted_2", "sk_api_planted_3"
SECRETS = (HUB, ENV, KEY)
UP = ("up", "toy", "--tp", "2", "--yes", "-e", f"HF_TOKEN={ENV}", "--api-key-file", "key", "--hub-token-file", "hub")


@pytest.fixture
def planted(cluster: Typed, desk: Desk) -> Typed:
    """Tokens in files and options; the model is gated and missing, so that the hub's token travels as well."""
    Path("key").write_text(KEY + "\n")
    Path("hub").write_text(HUB + "\n")
    desk.hub_token = HUB
    for machine in desk:
        machine.models.clear()
    return cluster


def words_sent(desk: Desk) -> Iterator[str]:
    """Every word of every command that hosts were asked, and every program on stdin."""
    for host in desk.hosts.values():
        for question in host.asked:
            yield from question.argv
            if question.argv[0] != "cmp":  # what it compares with a file of mode 0600 is no program
                yield question.stdin.decode("utf-8", "replace")
        for argv in host.started:
            yield from argv


def outside(desk: Desk, place: Path) -> Iterator[tuple[str, str]]:
    """Everything that anybody may read, by where it is."""
    for machine in desk:
        yield "docker inspect", json.dumps([one.inspect() for one in machine.docker.containers.values()])
        yield "audit", json.dumps(machine.audit)
        for path, (data, mode) in machine.files.items():
            if mode & 0o077:
                yield path, data.decode("utf-8", "replace")
    yield "words", "\n".join(words_sent(desk))
    for path in place.rglob("*"):
        if path.is_file() and path.name not in ("key", "hub"):
            yield str(path), path.read_bytes().decode("utf-8", "replace")


def check(desk: Desk, place: Path, *printed: str, secrets: Iterable[str] = SECRETS) -> None:
    for where, text in [*outside(desk, place), *(("printed", text) for text in printed)]:
        for secret in secrets:
            assert secret not in text, f"{secret} is in {where}"


ALL = [word for name, value in (SECRET | INNOCENT).items() for word in ("-e", f"{name}={value}")]


def shown(text: str) -> set[str]:
    """The innocent variables that a text shows with their values."""
    got = text.replace("\\", "")
    return {name for name, value in INNOCENT.items() if name in got and value in got}


def test_the_plan_the_argv_and_the_labels_show_no_secret_and_the_rest(cluster: Typed, desk: Desk) -> None:
    """By their names and by their forms; none is hidden that is no secret."""
    for words in (("--dry-run",), ("--dry-run", "--json"), ()):
        ran = cluster.must("up", "toy", "--tp", "2", "--yes", *ALL, *words)
        if words:
            assert shown(ran.out) == set(INNOCENT)
        check(desk, cluster.place, ran.all, secrets=SECRET.values())
    for machine in desk:
        [one] = machine.docker.containers.values()
        assert {name: one.env.get(name) for name in INNOCENT} == INNOCENT
        assert json.loads(one.labels["cluster.spec"])["env"] == INNOCENT
        assert (
            json.loads(machine.files[f"{DATA}/deployments/{one.labels['cluster.deployment']}/secrets.json"][0])
            == SECRET
        )


def test_evidence_holds_no_secret(cluster: Typed, desk: Desk) -> None:
    """Neither those that were given with -e nor those that only look like one, as an engine may print any."""
    stray = [value for name, value in SECRET.items() if name in ("GREETING", "HTTPS_PROXY", "HELLO", "NOTE", "EXTRA")]
    desk.leaky = True
    desk.bad_flag = "--max-model-len"
    desk.last_line = f"RuntimeError: cannot log in with {' '.join(stray)}"
    for given in (ALL, []):
        ran = cluster.ends(1, "up", "toy", "--tp", "2", "--yes", *given)
        check(desk, cluster.place, ran.all, secrets=SECRET.values() if given else stray)
    assert len(list((cluster.place / "state/cluster/evidence").iterdir())) == 2


def test_results_hold_no_secret(cluster: Typed, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line and the conditions that stand in them; also of a benchmark, which records what was typed."""
    (cluster.place / "recipes/toy.yaml").write_text(RECIPE.format(model="drafted"))
    words = ("sweep", "toy", "--results", "kept", "--vary", "tp=1,2", "--runs", "1", *ALL)
    monkeypatch.setattr("sys.argv", ["cluster", *words, "-eGLUED_PASSWD=hush99-a8Kq"])
    with measurable(desk, (400, 400)):
        ran = cluster.must(*words)
    kept = list((cluster.place / "kept").rglob("*.json"))
    assert len(kept) >= 3
    check(desk, cluster.place, ran.all, secrets=[*SECRET.values(), "hush99-a8Kq"])
    assert set.union(*(shown(path.read_text()) for path in kept)) == set(INNOCENT)


def test_nothing_shows_a_secret(planted: Typed, desk: Desk) -> None:
    printed = []
    dry = [(*UP, "--dry-run"), (*UP, "--dry-run", "--json")]
    rest = [("status",), ("status", "--json"), ("logs",), ("down", "--dry-run")]
    for words in (UP, ("down",), *dry, UP, *dry, (*UP, "--json"), *rest):
        printed.append(planted.must(*words).all)
    assert all("secrets.json mode 0600 (secret)" in text for text in printed[2:4])
    check(desk, planted.place, *printed)
    for one in desk.containers:
        assert not {"HF_TOKEN", "VLLM_API_KEY"} & set(one.env)
    files = {
        path.rpartition("/")[2]: (data, mode)
        for path, (data, mode) in desk["spark1"].files.items()
        if any(secret.encode() in data for secret in SECRETS)
    }
    assert {name: mode for name, (_, mode) in files.items()} == {"secrets.json": 0o600, "api-key": 0o600}
    assert json.loads(files["secrets.json"][0]) == {"HF_TOKEN": ENV, "VLLM_API_KEY": KEY}
    ran = planted.must("down")
    check(desk, planted.place, ran.all)
    assert not [path for path in desk["spark1"].files if path.startswith(f"{DATA}/deployments")]


def test_evidence_is_redacted(planted: Typed, desk: Desk) -> None:
    """An engine that prints its environment, and then fails."""
    desk.leaky = True
    desk.bad_flag = "--max-model-len"
    ran = planted.ends(1, *UP)
    check(desk, planted.place, ran.all)
    [folder] = (planted.place / "state/cluster/evidence").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert {"error.txt", "spark1-log.txt", "spark1-inspect.json", "spark2-log.txt", "spark1-ray-logs.tar"} <= names
    assert "'HF_TOKEN': '****************'" in (folder / "spark1-log.txt").read_text()
    assert (folder.stat().st_mode & 0o777, (folder / "error.txt").stat().st_mode & 0o777) == (0o700, 0o600)
    assert not [data for machine in desk for data, _ in machine.files.values() if b"planted" in data]


def test_a_failed_download_does_not_show_the_token(planted: Typed, desk: Desk) -> None:
    desk.hub_token = "another"
    ran = planted.ends(4, *UP)
    check(desk, planted.place, ran.all)
    assert not [data for machine in desk for data, _ in machine.files.values() if b"planted" in data]


def test_wrong_words_are_not_repeated(planted: Typed) -> None:
    """A secret in the wrong place of the command line."""
    for words in (
        ("-e", f"MY-TOKEN={ENV}"),
        ("--", f"--api-key={KEY}"),
        ("--set", f"vllm.api-key={KEY}"),
        ("--", "--hf-token", ENV),
        ("--set", f"vllm.hf-token={ENV}"),
        ("--set", f"env.DB_PASSWD={ENV}"),
    ):
        ran = planted.ends(2, "up", "toy", *words)
        assert ENV not in ran.all
        assert KEY not in ran.all


def test_a_changed_key_replaces_what_serves(cluster: Typed, desk: Desk, place: Path) -> None:
    Path("key").write_text(KEY + "\n")
    words = ("up", "toy", "--tp", "2", "--yes", "--api-key-file", "key", "-e", f"HF_TOKEN={ENV}")
    cluster.must(*words)
    [old] = desk.serving()
    same = cluster.must(*words)
    assert list(desk.serving()) == [old]
    Path("key").write_text(HUB + "\n")
    dry = cluster(*words, "--dry-run")
    assert f"replace {old}: API key changed" in dry.out
    assert list(desk.serving()) == [old]
    changed = cluster.must(*words)
    [new] = desk.serving()
    assert new != old
    assert desk["spark1"].read(f"{DATA}/deployments/{new}/api-key") == HUB.encode()
    assert "nothing is changed" in cluster(*words).out
    assert list(desk.serving()) == [new]
    token = cluster(*words[:-1], "HF_TOKEN=hf_another_one_5")
    assert f"replace {new}: a secret (-e) changed" in token.out
    check(desk, place, same.all, dry.all, changed.all, token.all)


def test_files_of_secrets_that_are_gone_replace_nothing(cluster: Typed, desk: Desk) -> None:
    words = ("up", "toy", "--tp", "2", "--yes", "-e", f"HF_TOKEN={ENV}")
    cluster.must(*words)
    [old] = desk.serving()
    for machine in desk:
        machine.files = {path: file for path, file in machine.files.items() if not path.endswith("secrets.json")}
    cluster.must(*words)
    assert list(desk.serving()) == [old]
