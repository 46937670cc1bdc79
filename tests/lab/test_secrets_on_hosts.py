"""Secrets: what is given with -e, --api-key-file and --hub-token-file is found where it must be, and nowhere else."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts_now import DATA, HOSTS, ask_model, assert_nothing_of_ours, rank_of
from own_lab import Lab
from person import MP, QUICK, RAY, Person
from proc_watch import Watch

Make = Callable[[str, str], None]
TOKEN, KEY, HUB = "planted-Qz7token", "planted-Qz7key", "hf_planted-Qz7hub"
EVERYWHERE = "/home /root /etc /srv /tmp /var/tmp /var/log /run /dev/shm"


def found(lab: Lab, host: str, text: str) -> dict[str, str]:
    """Files of a host that hold a text, Docker's own and those inside running containers included → mode and owner."""
    shells = (
        f"sudo -n grep -rlsF -D skip -e {text} {EVERYWHERE} /var/lib/docker/containers /var/lib/docker/volumes || true"
    )
    files = lab.tell(host, shells).splitlines()
    return {file: lab.tell(host, f"sudo -n stat -c '%a %U' '{file}'") for file in files}


def found_inside(lab: Lab, host: str, text: str) -> list[str]:
    """Files inside a rank's container that hold a text: Ray's session and logs, /tmp, /dev/shm."""
    grep = f"grep -rlsF -D skip -e {text} /tmp /dev/shm /root /cache /var/log /run || true"
    return lab.tell(host, f"docker exec {rank_of(lab, host)} {grep}").splitlines()


def found_here(place: Path, text: str) -> list[str]:
    """Files of the operator that hold a text: state, evidence, results, what was printed."""
    return subprocess.run(["grep", "-rlF", text, place], capture_output=True, text=True).stdout.splitlines()


def test_planted_secrets_are_nowhere_but_in_their_files(lab: Lab, person: Person) -> None:
    """On real Ray, whose session logs are looked through too."""
    (person.place / "k").write_text(f"{KEY}\n")
    words = ("up", *RAY, "-e", f"SECRET_TOKEN={TOKEN}", "--api-key-file", "k")
    with Watch(TOKEN, KEY) as watch:
        plan = person.start(*words, "--dry-run")
        watch.allow(plan.process.pid)
        assert plan.ended().code == 0
        run = person.start(*words)
        watch.allow(run.process.pid)
        ran = run.ended()
        assert ran.code == 0, ran
        person.must("status", "--json")
        person.must("logs")
        results = person.must(
            "bench", "--pp", "64", "--tg", "8", "--depth", "0", "--runs", "1", "--results", "r", "--json"
        )
    assert watch.rounds > 50
    assert any("docker" in program for program in watch.programs)
    assert watch.shown == set()
    assert (person.place / results.document["path"]).exists()
    assert found_here(person.place, TOKEN) == []
    assert found_here(person.place, KEY) == [str(person.place / "k")]
    for host in HOSTS:
        home = lab.tell(host, f"echo {DATA}/deployments/*")
        assert found(lab, host, TOKEN) == {f"{home}/secrets.json": "600 spark"}
        assert found(lab, host, KEY) == {f"{home}/secrets.json": "600 spark", f"{home}/api-key": "600 spark"}
        assert lab.tell(host, f"stat -c %a {home}/ray-token {DATA} {home}") == "600\n700\n700"
        assert found_inside(lab, host, "planted-Qz7") == []
        told = lab.tell(host, f"docker inspect {rank_of(lab, host)}; docker logs {rank_of(lab, host)} 2>&1")
        assert "planted-Qz7" not in told
        assert lab.tell(host, f"cat {home}/ray-token") not in told
        assert f"SECRET_TOKEN={TOKEN}" in environment_of_engine(lab, host)
    assert_key_is_asked_for(lab)
    person.must("down")
    assert_nothing_of_ours(lab)
    for host in HOSTS:
        assert found(lab, host, "planted-Qz7") == {}


def environment_of_engine(lab: Lab, host: str) -> list[str]:
    """The environment of the engine's, else Ray's, process in the rank's container: there the token must be."""
    script = (
        "for p in /proc/[0-9]*; do grep -q -a -e raylet -e 'vllm' $p/cmdline && tr '\\0' '\\n' <$p/environ; done; true"
    )
    return lab.tell(
        host, f"docker exec {rank_of(lab, host)} sh -c {json.dumps(script).replace('$', chr(92) + '$')}"
    ).splitlines()


def assert_key_is_asked_for(lab: Lab) -> None:
    """With the key 200, with none or another 401."""
    assert ask_model(lab, key=KEY).endswith("200")
    assert ask_model(lab).endswith("401")
    assert ask_model(lab, key="planted").endswith("401")


def test_evidence_and_errors_hide_what_an_engine_prints(lab: Lab, person: Person) -> None:
    """An engine that prints its secrets, as some do: in the logs on its host they are, in what we keep they are not."""
    line = "echo token is $SECRET_TOKEN; echo key is $VLLM_API_KEY; exit 9"
    recipe = person.own_recipe(f'before_serve: [["sh", "-c", "{line}"]]')
    (person.place / "k").write_text(f"{KEY}\n")
    ran = person("up", recipe, *MP, "-e", f"SECRET_TOKEN={TOKEN}", "--api-key-file", "k")
    assert ran.code == 1, ran
    assert "exited with 9" in ran.errors[0]["error"]
    [kept] = person.evidence
    assert f"token is {'*' * len(TOKEN)}" in (kept / "spark1-log.txt").read_text()
    assert found_here(person.place, TOKEN) == []
    assert found_here(person.place, KEY) == [str(person.place / "k")]
    for host in HOSTS:
        assert found(lab, host, "planted-Qz7") == {}


def test_the_doctors_archive_hides_what_an_engine_prints(lab: Lab, person: Person) -> None:
    """The same of an engine that goes on to serve; the archive is for strangers."""
    line = "echo token is $SECRET_TOKEN; echo key is $VLLM_API_KEY"
    recipe = person.own_recipe(f'before_serve: [["sh", "-c", "{line}"]]')
    (person.place / "k").write_text(f"{KEY}\n")
    person.must("up", recipe, *MP, "-e", f"SECRET_TOKEN={TOKEN}", "--api-key-file", "k")
    assert TOKEN in lab.tell("spark1", f"docker logs {rank_of(lab, 'spark1')} 2>&1")
    hidden = [lab.tell(host, "cat /etc/machine-id") for host in HOSTS]
    hidden += [lab.tell("spark1", f"cat {DATA}/deployments/*/ray-token"), TOKEN, KEY]
    person.must("doctor", recipe, *QUICK, "--bundle", "bug.tar.gz", HF_TOKEN=HUB)
    with tarfile.open(person.place / "bug.tar.gz") as archive:
        files = {member.name: archive.extractfile(member).read().decode() for member in archive}
    assert [name for name, text in files.items() for secret in (*hidden, HUB) if secret in text] == []
    assert [name for name, text in files.items() if "PRIVATE KEY" in text or "ssh-ed25519" in text] == []
    assert any("token is ***" in text for name, text in files.items() if name.endswith("-r0-log.txt"))
    assert {f"cluster-doctor/{host}/facts.json" for host in HOSTS} < set(files)


def test_hub_token_is_there_for_the_download_only(lab: Lab, person: Person) -> None:
    (person.place / "t").write_text(f"{HUB}\n")
    words = ("--yes", "--set", "model=cluster-lab/gated-gemma-4", "--hub-token-file", "t")
    try:
        with Watch(HUB) as watch:
            ran = person("up", *MP, *words)
        assert ran.code == 0, ran
        assert watch.shown == set()
        for host in HOSTS:
            assert found(lab, host, HUB) == {}
            assert found_inside(lab, host, HUB) == []
            told = lab.tell(host, f"docker inspect {rank_of(lab, host)}; docker logs {rank_of(lab, host)} 2>&1")
            assert HUB not in told
            assert "HF_TOKEN" not in told
        assert found_here(person.place, HUB) == [str(person.place / "t")]
    finally:
        for host in HOSTS:
            lab.tell(host, "rm -rf ~/.cache/huggingface/hub/models--cluster-lab--gated-gemma-4")


@pytest.mark.campaign
def test_token_of_a_killed_download_is_removed_by_the_next_command(lab: Lab, person: Person) -> None:
    (person.place / "t").write_text(f"{HUB}\n")
    words = ("--yes", "--set", "model=cluster-lab/gated-gemma-4", "--hub-token-file", "t")
    try:
        run = person.start("up", *MP, *words)
        run.await_said("waiting: download of")
        run.kill()
        person.must("down")
        for host in HOSTS:
            assert found(lab, host, HUB) == {}
        assert_nothing_of_ours(lab)
    finally:
        for host in HOSTS:
            lab.tell(host, "rm -rf ~/.cache/huggingface/hub/models--cluster-lab--gated-gemma-4")


def test_the_watch_would_see_it(lab: Lab) -> None:
    """A secret in docker's words and one in a docker client's environment, each for a moment, are both noticed."""
    run = "docker run --rm --entrypoint sleep"
    with Watch("planted-Qz7word", "planted-Qz7variable") as watch:
        lab.tell("spark1", f"{run} -e A=planted-Qz7word cluster-lab/vllm:quick 0.3")
        lab.tell("spark2", f"B=planted-Qz7variable {run} -e B cluster-lab/vllm:quick 0.3")
    assert any(row.startswith("words of") and "planted-Qz7word" in row for row in watch.shown)
    assert any(row.startswith("environment of") and "docker run" in row for row in watch.shown)
