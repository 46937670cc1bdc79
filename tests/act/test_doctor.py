"""`cluster doctor`: silent when all is well, says the rest once, changes nothing; the archive holds no secret."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from fake_docker import Container
from machine import IMAGE, Desk, Killed, Stranger, unreachable
from test_transcripts import STORIES
from typed import UP, Typed

from cluster.argv.question import Answer

HUB, ENV, KEY = "hf_hub_planted_1", "planted-by-env-2", "planted api key 3"
SSH, STRANGER, HERE = "b3BlbnNzaC1wbGFudGVkLTQ", "planted+stranger/5=", "planted-here-6"
SECRETS = (HUB, ENV, KEY, SSH, STRANGER, HERE)


def told(cluster: Typed, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document."""
    ran = cluster("doctor", "--json", *words)
    return ran.code, json.loads(ran.out)


def checks(document: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["level"], one["check"], one["host"]) for one in document["findings"]]


def test_nothing_is_changed_and_no_lock_is_needed(cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP)
    desk.hosts["spark1"].lock_holder = {"who": "ada", "since": 0.0, "why": "bench"}
    before = desk.state()
    for words in (("doctor",), ("doctor", "-n", "spark1"), ("doctor", "-r", "toy", "--json")):
        ran = cluster(*words)
        assert ran.code == 0, ran.all
        assert desk.state() == before
        assert [host.audit for host in desk.hosts.values()] == [machine.audit for machine in desk]


def test_the_document(cluster: Typed, desk: Desk) -> None:
    code, document = told(cluster)
    assert (code, document["hosts"], document["findings"], document["errors"]) == (0, ["spark1", "spark2"], [], [])
    assert document["simulated"] == ""
    desk["spark2"].product = "NVIDIA DGX Spark (simulated)"
    desk["spark2"].strangers.append(Stranger(99, "ollama", 0, 40 << 30, True))
    desk["spark1"].models.clear()
    code, document = told(cluster)
    assert code == 4
    assert checks(document) == [
        ("fault", "memory", "spark2"),
        ("warning", "gpu-stranger", "spark2"),
        ("note", "weights", "spark1"),
    ]
    assert document["findings"][0]["runbook"] == "memory-is-full"
    assert document["simulated"] == "NVIDIA DGX Spark (simulated)"


def test_docker_that_keeps_its_images_elsewhere(cluster: Typed, desk: Desk) -> None:
    desk["spark2"].docker.root = "/data/docker"
    assert told(cluster) == (0, {**told(cluster)[1], "findings": []})
    desk["spark2"].root_free_bytes = 2 << 30
    code, document = told(cluster)
    assert (code, checks(document)) == (0, [("warning", "disk", "spark2")])
    assert document["findings"][0]["what"] == "little room under /data/docker"
    desk["spark2"].docker.root = "/var/lib/docker"
    assert told(cluster)[1]["findings"] == []


def test_a_host_that_is_lost_half_way(cluster: Typed, desk: Desk) -> None:
    def lost(container: Container, stdin: bytes) -> Answer:
        raise unreachable("spark2")

    desk["spark2"].docker.alone = lost
    desk["spark1"].strangers.append(Stranger(99, "ollama", 0, 8 << 30, True))
    ran = cluster("doctor")
    assert ran.code == 3
    assert "warning  spark1  gpu-stranger" in ran.out
    assert "spark2 did not answer" in ran.err


def test_what_could_not_be_read_is_unknown_and_no_fault(cluster: Typed, desk: Desk) -> None:
    desk["spark2"].missing["memory"] = {"missing": "/proc/meminfo: permission denied", "kind": "refused"}
    desk["spark1"].can_ping = False
    code, document = told(cluster)
    assert code == 0
    assert checks(document) == [("unknown", "memory", "spark2"), ("unknown", "ping", "spark1")]
    assert cluster("doctor").out.splitlines()[-1].startswith("2 unknown on spark1, spark2")


@pytest.mark.parametrize("sizes", ["--tp 2", "--solo"])
def test_what_runs_is_ours(sizes: str, cluster: Typed, desk: Desk) -> None:
    """Its ports and memory are no strangers', whichever of its hosts is asked."""
    assert cluster("up", "toy", *sizes.split()).code == 0
    for words in ((), ("-n", "spark1"), ("-n", "spark2")):
        assert told(cluster, *words)[1]["findings"] == []


def test_what_ran_is_a_fault_and_what_starts_is_not(cluster: Typed, desk: Desk) -> None:
    desk.on_sleep.append(lambda: desk.kill() if desk.sleeps == 1 else None)
    with pytest.raises(Killed):
        cluster(*UP)
    desk.recover()
    code, document = told(cluster)
    assert (code, checks(document)) == (0, [("note", "deployment", "spark1")])
    cluster.must(*UP)
    [worker] = desk["spark2"].lives()
    worker.ray = False
    code, document = told(cluster)
    assert (code, checks(document)) == (4, [("fault", "deployment", "spark1")])
    assert document["findings"][0]["evidence"] == "192.168.100.12 is not an alive node"


def test_half_of_a_deployment_proves_nothing_of_its_traffic(cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP)
    desk.sockets = True
    assert told(cluster, "-n", "spark1")[1]["findings"] == []


@pytest.mark.parametrize("words", [("--allow-socket",), ("--set", "transport=socket")])
def test_sockets_that_were_accepted_are_no_fault(words: tuple[str, ...], cluster: Typed, desk: Desk) -> None:
    desk.sockets = True
    cluster.must(*UP, *words)
    code, document = told(cluster)
    assert (code, checks(document)) == (0, [("note", "transport", "spark1")])
    assert words[-1].replace("=", ": ") in document["findings"][0]["what"]


def test_traffic_that_nccl_does_not_see_is_named_by_hca(cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP, "-e", "VLLM_ENABLE_ROCE_ALLREDUCE=1")
    code, document = told(cluster)
    assert (code, checks(document)) == (0, [("note", "transport", "spark1")])
    assert " MB" in document["findings"][0]["evidence"]


def test_a_server_that_is_busy_or_answers_with_an_error(cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP)
    desk.answers = (0, "TimeoutError: timed out")
    code, document = told(cluster)
    assert (code, document["findings"]) == (0, [])
    desk.answers = (500, "EngineCore encountered an issue")
    code, document = told(cluster)
    assert (code, checks(document)) == (4, [("fault", "deployment", "spark1")])
    assert "HTTP 500: EngineCore encountered an issue" in document["findings"][0]["what"]


def test_more_hosts_than_a_line_holds(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"spark{number}" for number in range(1, 9)]
    rows = "".join(f"  {name}: {{address: 192.168.1.{40 + n}, user: nvidia}}\n" for n, name in enumerate(names, 1))
    (place / "inventory/default.yaml").write_text(f"hosts:\n{rows}default_recipe: toy\n")
    desk = Desk(*names)
    for machine in desk:
        machine.docker.trouble = (127, "docker: not found")
    ran = Typed(desk, place, capsys)("doctor")
    assert ran.code == 4
    assert "fault    8 hosts  docker  Docker cannot be used" in ran.out
    assert f"hosts: {', '.join(names)}" in ran.out
    assert "on each: install Docker" in ran.out


REFUSED = [name for name, (code, words, _) in STORIES.items() if code == 4 and words == UP and name.startswith("up/")]


@pytest.mark.parametrize("name", REFUSED)
def test_up_refuses_for_what_doctor_calls_a_fault(name: str, cluster: Typed) -> None:
    """`up` stops at the first kind of fault, doctor goes on; what neither calls one comes out later or is fetched."""
    for change in STORIES[name][2]:
        change(cluster)
    faults = {check for level, check, _ in checks(told(cluster)[1]) if level == "fault"}
    refused = set(re.findall(r"check `([\w-]+)`", cluster(*UP).err))
    assert refused <= faults
    assert bool(refused) == bool(faults)


# the archive


@pytest.fixture
def planted(cluster: Typed, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """A running deployment that prints its environment, and secrets wherever somebody may have put one."""
    Path("key").write_text(KEY + "\n")
    Path("id").write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SSH}\n-----END OPENSSH PRIVATE KEY-----\n")
    inventory = Path("inventory/default.yaml")
    url = f"http://ada:{STRANGER}@proxy.example:3128"
    inventory.write_text(f"{inventory.read_text()}defaults: {{identity_file: ../id}}\n")
    recipe = Path("recipes/toy.yaml")
    recipe.write_text(f"{recipe.read_text()}summary: 'fetched through {url}'\n")
    monkeypatch.setenv("HF_TOKEN", HUB)
    monkeypatch.setenv("BUILD_PASSWORD", HERE)
    desk.leaky = True
    cluster.must(*UP, "-e", f"MY_TOKEN={ENV}", "--api-key-file", "key")
    words = ("run", "--detach", "--name", "db", "--label", f"db.password={STRANGER}", "--env", f"PASSWORD={STRANGER}")
    assert desk["spark1"].docker.answer((*words, "--entrypoint", "sleep", IMAGE, f"--token={STRANGER}")).exit == 0
    desk["spark2"].model_problems = (f"{HERE} and {HUB} are in the way",)
    return cluster


def read(archive: Path) -> dict[str, str]:
    """Its files by name, the common folder left out."""
    with tarfile.open(archive) as tar:
        members = {member.name.partition("/")[2]: tar.extractfile(member) for member in tar}
        return {name: file.read().decode() for name, file in members.items() if file}


def test_the_archive_holds_no_secret(planted: Typed) -> None:
    """And no machine id, which is nobody's business either."""
    ran = planted("doctor", "--bundle", "bug.tar.gz")
    assert ran.code == 4
    assert "bug.tar.gz: 20 files, without secrets" in ran.err
    texts = read(Path("bug.tar.gz"))
    hosts = {name for name in texts if "/" in name}
    assert set(texts) - hosts == {"findings.json", "versions.json", "inventory.yaml", "recipe.yaml"}
    assert {"spark1/facts.json", "spark2/facts.json"} < hosts
    assert {name.rpartition("-")[2] for name in hosts} > {"log.txt", "inspect.json", "kernel.txt", "docker.txt"}
    whole = gzip.decompress(Path("bug.tar.gz").read_bytes()).decode()
    for secret in (*SECRETS, f"{1:032x}"):
        assert secret not in whole, secret
    assert "PRIVATE KEY" not in whole
    assert Path("bug.tar.gz").stat().st_mode & 0o777 == 0o600


def test_the_archive_says_what_a_report_needs(planted: Typed) -> None:
    planted("doctor", "--bundle", "bug.tgz")
    texts = read(Path("bug.tgz"))
    [finding] = json.loads(texts["findings.json"])["findings"]
    assert finding["evidence"] == f"{'*' * len(HERE)} and {'*' * len(HUB)} are in the way"
    facts = json.loads(texts["spark1/facts.json"])
    assert facts["memory"]["total"] == 120 << 30
    assert {one["name"] for one in facts["containers"]} > {"db"}
    assert "http://(hidden)@proxy.example:3128" in texts["recipe.yaml"]
    assert "max-model-len: 4096" in texts["recipe.yaml"]
    [log] = [text for name, text in texts.items() if name.endswith("r0-log.txt")]
    assert "Loading weights took" in log
    assert "'MY_TOKEN': '(hidden)'" in log


def test_the_archive_is_written_whole_or_not(cluster: Typed, desk: Desk) -> None:
    Path("old.tar.gz").write_text("mine")
    Path("folder.tar.gz").mkdir()
    for name, words in {"old.tar.gz": (), "folder.tar.gz": ("--yes",), "bug.zip": (), "nowhere/bug.tar.gz": ()}.items():
        ran = cluster("doctor", "--bundle", name, *words)
        assert (ran.code, desk.hosts["spark1"].asked) == (2, []), ran.all
    assert Path("old.tar.gz").read_text() == "mine"
    desk.hosts["spark2"].drop()
    assert cluster("doctor", "--bundle", "old.tar.gz", "--yes").code == 3
    texts = read(Path("old.tar.gz"))
    assert json.loads(texts["findings.json"])["errors"][0]["where"] == "spark2"
    assert {"spark1/facts.json", "versions.json"} < set(texts)
    assert [path.name for path in Path().glob(".*tar.gz*")] == []
