"""`up` ended at every moment by Ctrl-C, a lost terminal, SIGTERM and SIGKILL; afterwards the hosts are right.

On the quick image; some of the kills are made on the real engine too, in test_main_job.py. Of each kind one is tried at
every change, more in the campaign; every step with every end: tests/act/test_steps.py.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM

import pytest
from hosts_now import KEPT, assert_nothing_of_ours, assert_same, assert_serves, containers, snapshot
from own_lab import Lab, campaign
from person import CLUSTER, MP, Person, Running, quick
from waiting import eventually

SLOW = quick(ready_after_s=2)
MOMENTS = {
    "locked": "",
    "prepare": "prepare\n",
    "start containers": "start containers\n",
    "containers": "waiting: containers",
    "engine": "waiting: the engine",
    "prove": "real completion",
}
"""Moment → what `up` says when it has come."""


def await_moment(lab: Lab, run: Running, moment: str) -> None:
    """Wait until an `up` has come so far; the lock of spark2 is the last that it takes."""
    if moment == "locked":
        lock = lab.root / "hosts/spark2/upper/home/spark/.local/share/cluster/lock"
        eventually(lambda: lock.exists() and f"pid {run.process.pid})" in lock.read_text(), 60, "the lock is taken")
    else:
        run.await_said(MOMENTS[moment])


KILLS = [("engine", "up"), ("start containers", "down")]
KILLS += [campaign("locked", "up"), campaign("prepare", "up"), campaign("containers", "down"), campaign("prove", "up")]


@pytest.mark.parametrize(("moment", "then"), KILLS)
def test_killed_up_is_repaired(lab: Lab, person: Person, moment: str, then: str) -> None:
    run = person.start("up", *MP, *SLOW)
    await_moment(lab, run, moment)
    assert run.kill().code == -SIGKILL
    left = containers(lab)
    if then == "up":
        again = person.must("up", *MP, "--json", *SLOW)
        assert_serves(lab)
        if moment in ("engine", "prove"):  # it was on its way, and is joined
            assert again.document["changed"] is False
            assert containers(lab) == left
    person.must("down")
    assert_nothing_of_ours(lab)


INTERRUPTIONS = [("engine", SIGINT), campaign("locked", SIGINT), campaign("start containers", SIGTERM)]
INTERRUPTIONS += [campaign("prepare", SIGHUP), campaign("prove", SIGINT)]


@pytest.mark.parametrize(("moment", "number"), INTERRUPTIONS)
def test_interrupted_up_takes_back_what_it_began(lab: Lab, person: Person, moment: str, number: signal.Signals) -> None:
    before = snapshot(lab, without=KEPT)
    run = person.start("up", *MP, *SLOW)
    await_moment(lab, run, moment)
    run.send(number)
    ran = run.ended()
    assert ran.code == 130, ran
    assert "Traceback" not in ran.err
    [error] = ran.errors
    assert "interrupted" in error["error"]
    assert_nothing_of_ours(lab)
    assert_same(lab, before, without=KEPT)
    if moment not in ("locked", "prepare"):
        assert error["rolled_back"] == "all that this run started"
        [kept] = person.evidence
        assert (kept / "spark1-log.txt").exists()
    assert ran.seconds < 90, ran


def test_second_ctrl_c_leaves_at_once_and_the_next_down_cleans_up(lab: Lab, person: Person) -> None:
    run = person.start("up", *MP, *quick(ready_after_s=60))
    run.await_said("waiting: the engine")
    run.send(SIGINT)
    run.await_said("undo\n")
    run.send(SIGINT)
    began = time.monotonic()
    assert run.ended().code in (130, -SIGINT)
    assert time.monotonic() - began < 5
    person.must("down")
    assert_nothing_of_ours(lab)


@pytest.mark.parametrize("moment", [campaign("stop the old"), "waiting: the engine", campaign("remove the old")])
def test_killed_replacement_is_repaired(lab: Lab, person: Person, moment: str) -> None:
    """Killed while one deployment replaces another: the next `up` brings what it is told, and only that."""
    person.must("up", *MP)
    run = person.start("up", *MP, *SLOW)
    run.await_said(moment)
    run.kill()
    person.must("up", *MP, *SLOW)
    assert_serves(lab)
    assert lab.tell("spark2", "docker ps -aq | wc -l") == "1"
    assert lab.tell("spark2", "ls ~/.local/share/cluster/deployments | wc -l") == "1"
    person.must("down")
    assert_nothing_of_ours(lab)


@pytest.mark.campaign
@pytest.mark.parametrize("moment", ["stop the old", "waiting: the engine"])
def test_interrupted_replacement_gives_the_old_one_back(lab: Lab, person: Person, moment: str) -> None:
    person.must("up", *MP)
    before = containers(lab)
    run = person.start("up", *MP, *SLOW)
    run.await_said(moment)
    run.send(SIGINT)
    ran = run.ended()
    assert ran.code == 130, ran
    assert containers(lab) == before
    person.assert_unchanged("up", *MP)
    assert_serves(lab)


@pytest.mark.parametrize("moment", [campaign("stop\n"), "remove\n"])
def test_killed_down_is_finished_by_the_next(lab: Lab, person: Person, moment: str) -> None:
    person.must("up", *MP)
    run = person.start("down")
    run.await_said(moment)
    run.kill()
    person.must("down")
    assert_nothing_of_ours(lab)


def test_terminal_closed_after_ready_leaves_the_server_serving(lab: Lab, person: Person) -> None:
    terminal = Terminal(person, f"{CLUSTER} up {' '.join(MP)}; echo ended with $?; sleep 600")
    terminal.await_said("ended with 0")
    terminal.close()
    time.sleep(2)
    assert_serves(lab)
    person.assert_unchanged("up", *MP)


@pytest.mark.campaign
def test_terminal_closed_before_ready_takes_all_back(lab: Lab, person: Person) -> None:
    """Nobody can read any more what is said, and all is put back and explained all the same."""
    terminal = Terminal(person, f"exec {CLUSTER} up {' '.join(MP)} -- --additional-config '{SLOW[-1]}'")
    terminal.await_said("the engine")
    terminal.close()
    eventually(lambda: terminal.process.poll() is not None, 90, "up ends with its terminal")
    assert_nothing_of_ours(lab)
    assert len(person.evidence) == 1


class Terminal:
    """A shell with a terminal of its own, that can be closed."""

    def __init__(self, person: Person, line: str) -> None:
        self.side, theirs = pty.openpty()
        environment = person.environment | {"TERM": "xterm", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            ["sh", "-c", line],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=person.place,
            env=environment,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(theirs)
        self.said = ""

    def await_said(self, text: str) -> None:
        """Read until a text was said."""
        while text not in self.said:
            data = os.read(self.side, 65536)
            assert data, self.said
            self.said += data.decode("utf-8", "replace")

    def close(self) -> None:
        """Pull the plug: the kernel sends SIGHUP, and writing fails from now on."""
        os.close(self.side)


def take_terminal() -> None:
    """Make stdin the controlling terminal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
