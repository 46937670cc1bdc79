"""Ctrl-C: questions end at once, a change under way is awaited, and then undo works."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from loopback import Sshd, becomes, find_processes

from cluster.argv.question import Question
from cluster.errors import InterruptedByUser
from cluster.hosts.cancel import Cancel
from cluster.hosts.fleet import Fleet


@pytest.fixture
def fleet(sshd: Sshd) -> Fleet:
    cancel = Cancel()
    made = Fleet([sshd.host("spark1", cancel), sshd.host("spark2", cancel)], cancel=cancel)
    made.ask_all([Question(("true",))])  # connected
    return made


def press_ctrl_c(after_s: float) -> None:
    threading.Timer(after_s, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def test_questions_end_at_once(fleet: Fleet) -> None:
    press_ctrl_c(0.5)
    began = time.monotonic()
    with pytest.raises(InterruptedByUser):
        fleet.ask_all([Question(("sleep", "331.25"), timeout_s=60)])
    assert time.monotonic() - began < 2
    assert becomes(lambda: not find_processes("331.25"), 3.0)


def test_a_change_under_way_is_awaited(fleet: Fleet, tmp_path: Path) -> None:
    change = Question(("sh", "-c", f"sleep 1.5; echo done >> {tmp_path}/log"), changes=True)
    press_ctrl_c(0.4)
    began = time.monotonic()
    with pytest.raises(InterruptedByUser):
        fleet.ask({"spark1": [change], "spark2": [Question(("sleep", "332.25"), timeout_s=60)]})
    assert 1.3 < time.monotonic() - began < 4
    assert (tmp_path / "log").read_text() == "done\n"


def test_a_change_that_takes_too_long_is_ended(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.hosts.wire.CHANGE_PATIENCE_S", 0.5)
    press_ctrl_c(0.3)
    began = time.monotonic()
    with pytest.raises(InterruptedByUser):
        fleet.ask({"spark1": [Question(("sleep", "333.25"), timeout_s=60, changes=True)]})
    assert time.monotonic() - began < 4
    assert becomes(lambda: not find_processes("333.25"), 3.0)


def test_a_second_ctrl_c_leaves_at_once(fleet: Fleet) -> None:
    press_ctrl_c(0.4)
    press_ctrl_c(0.9)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fleet.ask({"spark1": [Question(("sleep", "5"), changes=True)]})
    assert time.monotonic() - began < 2


def test_undo_works_in_a_fresh_scope_and_what_was_left_behind_does_not(fleet: Fleet, tmp_path: Path) -> None:
    going_on = Question(("sh", "-c", f"echo went on >> {tmp_path}/log"), changes=True)

    def stubborn(host: object) -> None:
        time.sleep(2)
        fleet["spark1"].ask([going_on])

    press_ctrl_c(0.3)
    with pytest.raises(InterruptedByUser):
        fleet.each(stubborn)
    with pytest.raises(InterruptedByUser):
        fleet.ask_all([Question(("true",))])
    fleet.cancel.renew()
    undone = fleet.ask_all([Question(("echo", "undone"), changes=True)])
    assert [outcome.get()[0].text for outcome in undone.values()] == ["undone\n", "undone\n"]
    time.sleep(1.5)
    assert not (tmp_path / "log").exists(), "a worker left behind by Ctrl-C does not go on under the undo"


def test_connecting_is_interrupted_too(sshd: Sshd) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        cancel = Cancel()
        fleet = Fleet([sshd.host("spark1", cancel, port=silent.getsockname()[1])], cancel=cancel)
        press_ctrl_c(0.4)
        began = time.monotonic()
        with pytest.raises(InterruptedByUser):
            fleet.ask_all([Question(("true",))])
        assert time.monotonic() - began < 1.5


def test_a_hanging_host_does_not_hold_up_the_end_of_the_program(fleet: Fleet) -> None:
    press_ctrl_c(0.3)
    began = time.monotonic()
    with pytest.raises(InterruptedByUser):
        fleet.each(lambda host: time.sleep(30))
    assert time.monotonic() - began < 3
