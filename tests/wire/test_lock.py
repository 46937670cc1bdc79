"""The lock over real connections: held, refused, lost, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loopback import Sshd, becomes

from cluster.argv.far import started
from cluster.argv.question import Question
from cluster.errors import ClusterError, ExitCode, LockedError
from cluster.hosts.fleet import Fleet
from cluster.hosts.lock import Lock, who_am_i
from cluster.hosts.protocol import Process

# an operator of its own, who takes the lock and keeps it until stdin ends
OPERATOR = """
import sys
from cluster.config.inventory import HostEntry
from cluster.hosts.connect import connect
from cluster.hosts.lock import Lock
entry = HostEntry.model_validate_json(sys.argv[1])
with connect({"spark1": entry}) as fleet, Lock(fleet, "up lab-tiny", {"spark1": sys.argv[2]}, silence_s=2, beat_s=0.3):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def fleet(sshd: Sshd) -> Fleet:
    return Fleet([sshd.host("spark2"), sshd.host("spark1")])  # locked in the order of their names


@pytest.fixture
def dirs(tmp_path: Path) -> dict[str, str]:
    return {name: str(tmp_path / name / "data") for name in ("spark1", "spark2")}


@pytest.fixture
def operator(sshd: Sshd, dirs: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = begin(sshd, dirs)
    yield process
    process.kill()
    process.communicate()


def begin(sshd: Sshd, dirs: dict[str, str]) -> subprocess.Popen[bytes]:
    """An operator who holds the lock of spark1."""
    words = [sys.executable, "-c", OPERATOR, sshd.entry().model_dump_json(), dirs["spark1"]]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"held\n"
    return process


def can_take(fleet: Fleet, dirs: dict[str, str]) -> bool:
    try:
        with Lock(fleet, "another", dirs):
            return True
    except LockedError:
        return False


def test_one_gets_it_the_other_is_told_who_since_when_and_why(fleet: Fleet, dirs: dict[str, str]) -> None:
    with Lock(fleet, "up lab-tiny", dirs) as lock:
        assert not lock.lost()
        with pytest.raises(LockedError) as raised, Lock(fleet, "down", dirs):
            raise AssertionError("two locks at once")
        assert who_am_i() in raised.value.what
        assert "up lab-tiny" in raised.value.what
        assert "since" in raised.value.what
        assert raised.value.where == "spark1"
        assert not lock.lost(), "the refused one took nothing away"
    assert can_take(fleet, dirs)


def test_what_was_taken_is_given_back_when_a_later_host_is_locked(fleet: Fleet, dirs: dict[str, str]) -> None:
    with Lock(fleet.only(["spark2"]), "solo", dirs):
        with pytest.raises(LockedError) as raised, Lock(fleet, "up", dirs):
            raise AssertionError("two locks at once")
        assert raised.value.exit_code == ExitCode.LOCKED
        assert raised.value.where == "spark2"
        assert can_take(fleet.only(["spark1"]), dirs)


def test_a_killed_operator_leaves_nothing_behind(
    operator: subprocess.Popen[bytes], fleet: Fleet, dirs: dict[str, str]
) -> None:
    assert not can_take(fleet, dirs)
    operator.kill()
    assert becomes(lambda: can_take(fleet, dirs), 1.5)


def test_a_frozen_operator_loses_it_after_the_silence(
    operator: subprocess.Popen[bytes], fleet: Fleet, dirs: dict[str, str]
) -> None:
    time.sleep(2.5)
    assert not can_take(fleet, dirs), "its beats keep the lock for longer than the silence allowed"
    operator.send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    assert not can_take(fleet, dirs)
    assert becomes(lambda: can_take(fleet, dirs), 4)


def test_a_lock_that_was_lost_is_taken_again(fleet: Fleet, dirs: dict[str, str]) -> None:
    with Lock(fleet, "up", dirs) as lock:
        first = generations(dirs)
        fleet.close()
        lock.require()
        assert not can_take(fleet, dirs)
        assert all(now > before for now, before in zip(generations(dirs), first, strict=True))


def test_it_is_taken_again_by_itself(sshd: Sshd, dirs: dict[str, str]) -> None:
    """Nobody asks for it meanwhile; only one host's connection ended."""
    hosts = [sshd.host("spark1"), sshd.host("spark2")]
    with Lock(Fleet(hosts), "up", dirs):
        first = generations(dirs)
        hosts[1].close()
        assert becomes(lambda: generations(dirs)[1] > first[1], 5)
        assert generations(dirs)[0] == first[0]
        assert not can_take(Fleet([sshd.host("spark2")]), dirs)
    assert can_take(Fleet([sshd.host("spark1"), sshd.host("spark2")]), dirs)


@pytest.mark.parametrize("other", ["this version", "an older one", "one that removed the file"])
def test_a_lock_that_another_had_meanwhile_is_not_taken_again(
    other: str, fleet: Fleet, dirs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.hosts.lock.RETRY_S", 60)
    with Lock(fleet, "sleeping", dirs, silence_s=0.5, beat_s=60) as lock:
        time.sleep(0.8)
        file = Path(dirs["spark2"], "lock")
        if other == "this version":
            assert can_take(fleet.only(["spark2"]), dirs)
        elif other == "an older one":
            file.write_text("")
        else:
            file.unlink()
        lost = lock.lost()
        assert list(lost) == ["spark2"]
        assert isinstance(lost["spark2"], LockedError)
        assert [error.where for error in lock.taken()] == ["spark2"]
        with pytest.raises(LockedError):
            lock.require()
        lock.require(["spark1"])
        assert can_take(fleet.only(["spark2"]), dirs), "it is left to others"


def test_a_lock_that_another_holds_now_is_not_taken_again(
    sshd: Sshd, fleet: Fleet, dirs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.hosts.lock.RETRY_S", 60)
    with Lock(fleet.only(["spark1"]), "sleeping", dirs, silence_s=0.5, beat_s=60) as lock:
        time.sleep(0.8)
        other = begin(sshd, dirs)
        with pytest.raises(LockedError) as raised:
            lock.require()
        assert f"(pid {other.pid})" in raised.value.what
        other.communicate(b"")


def test_an_earlier_connection_of_ours_is_no_other_operator(sshd: Sshd, dirs: dict[str, str]) -> None:
    """The answer to taking it again was lost: that connection still holds it, with a generation that we never heard."""
    host = sshd.host()
    with Lock(Fleet([host]), "up", dirs) as lock:
        [first] = generations(dirs)
        argv, program = started(
            "hold", {"data_dir": dirs["spark1"], "who": who_am_i(), "why": "up", "silence_s": 2, "generation": first}
        )
        host.close()
        unheard = sshd.host()
        assert becomes(lambda: holds(unheard.start(argv, program, lasting=True)), 5)
        lock.require()
        assert generations(dirs)[0] >= first + 2


def test_an_old_file_is_no_hindrance(fleet: Fleet, dirs: dict[str, str]) -> None:
    for name, text in {"spark1": "", "spark2": '{"who": "ada", "since": 1.0, "why": "up", "pid": 7}'}.items():
        os.makedirs(dirs[name])
        Path(dirs[name], "lock").write_text(text)
    with Lock(fleet, "up", dirs):
        assert all(generations(dirs))


def holds(process: Process) -> bool:
    """Whether a holder got the lock; one that did not has ended."""
    return bool(json.loads(next(process.lines()))["held"])


def generations(dirs: dict[str, str]) -> list[int]:
    """By host, how often the lock was taken."""
    return [json.loads(file.read_text())["generation"] for name in dirs if (file := Path(dirs[name], "lock")).exists()]


def test_a_host_that_is_slow_for_a_moment_does_not_cost_the_lock(
    sshd: Sshd, dirs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = sshd.host()
    with Lock(Fleet([host]), "up", dirs, beat_s=60) as lock:
        daemon = int(host.ask([Question(("sh", "-c", "ps -o ppid= -p $PPID"))])[0].text)
        monkeypatch.setattr("cluster.hosts.ssh.SESSION_TIMEOUT_S", 0.3)
        os.kill(daemon, signal.SIGSTOP)
        assert host.ask([Question(("echo", "by another connection"))])[0].exit == 0
        os.kill(daemon, signal.SIGCONT)
        assert not lock.lost()


def test_it_outlives_an_interruption_for_the_undo(fleet: Fleet, dirs: dict[str, str]) -> None:
    for host in fleet.hosts.values():
        host.cancel = fleet.cancel
    with Lock(fleet, "up", dirs) as lock:
        first = generations(dirs)
        fleet.cancel.set()
        time.sleep(0.5)
        fleet.cancel.renew()
        assert not lock.lost()
        assert generations(dirs) == first
        assert not can_take(fleet, dirs)


def test_audit_lines(fleet: Fleet, dirs: dict[str, str]) -> None:
    with Lock(fleet, "up", dirs) as lock:
        lock.note("spark2", "docker run", argv=["a b", "ü\n"])
        lock.note("spark2", "docker rm")
        assert not lock.lost(), "answered after the lines before it"
    log = Path(dirs["spark2"]) / "audit.log"
    first, second = (json.loads(line) for line in log.read_text().splitlines())
    assert (first["what"], first["argv"], first["who"]) == ("docker run", ["a b", "ü\n"], who_am_i())
    assert second["what"] == "docker rm"
    assert first["time"].endswith("Z")
    assert log.stat().st_mode & 0o777 == 0o600
    assert not (Path(dirs["spark1"]) / "audit.log").exists()


def test_a_directory_that_cannot_be_written(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match="file") as raised:
        Lock(Fleet([sshd.host()]), "up", {"spark1": str(tmp_path / "file")}).__enter__()
    assert raised.value.code == "lock-failed"


def test_home_is_the_home_there(sshd: Sshd) -> None:
    with Lock(Fleet([sshd.host()]), "up", {"spark1": "~/data"}):
        assert json.loads((sshd.home / "data" / "lock").read_text())["why"] == "up"
    kept = json.loads((sshd.home / "data" / "lock").read_text())
    assert set(kept) == {"generation", "last"}, "who gave it back is not said to hold it"


def test_a_look_at_the_lock_does_not_disturb(sshd: Sshd, dirs: dict[str, str]) -> None:
    os.makedirs(dirs["spark1"])
    look = f"flock -s {dirs['spark1']}/lock sleep 0.04; sleep 0.04"
    process = subprocess.Popen(["sh", "-c", f"for i in $(seq 20); do {look}; done"])
    for _ in range(3):
        assert can_take(Fleet([sshd.host()]), dirs)
    process.wait()


def test_a_broken_lock_file_names_nobody(make_sshd: Callable[..., Sshd], dirs: dict[str, str]) -> None:
    os.makedirs(dirs["spark1"])
    Path(dirs["spark1"], "lock").write_text("17")
    process = subprocess.Popen(["flock", f"{dirs['spark1']}/lock", "sleep", "5"])
    time.sleep(0.3)
    with pytest.raises(LockedError, match="spark1 is locked by unknown"):
        Lock(Fleet([make_sshd().host()]), "up", dirs).__enter__()
    process.kill()
    process.wait()
