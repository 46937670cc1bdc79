"""Connections that fail, end, hang or are interrupted: what is tried again, and what is left there."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loopback import Sshd, becomes, find_processes, free_port

from cluster.argv.question import Question
from cluster.errors import ConnectionLostError, InterruptedByUser, UnreachableError
from cluster.hosts.cancel import Cancel
from cluster.hosts.fleet import Fleet
from cluster.hosts.ssh import SshHost, _prepare

TRUE = Question(("true",))
# counts its runs; the first run ends the sshd of its own session
CUT_ONCE = """
echo run >> "$1"
[ $(wc -l < "$1") -gt 1 ] || { kill -9 $(ps -o ppid= -p $PPID); sleep 20; }
echo answered
"""


def cut_once(log: Path, *, changes: bool) -> Question:
    return Question(("sh", "-c", CUT_ONCE, "sh", str(log)), changes=changes)


def test_questions_are_asked_again_on_a_new_connection_and_changes_never(sshd: Sshd, tmp_path: Path) -> None:
    assert sshd.host().ask([cut_once(tmp_path / "log", changes=False)])[0].out == b"answered\n"
    assert len((tmp_path / "log").read_text().split()) == 2
    host = sshd.host()
    with pytest.raises(ConnectionLostError) as raised:
        host.ask([TRUE, cut_once(tmp_path / "changes", changes=True)])
    assert raised.value.sent
    time.sleep(0.5)
    assert len((tmp_path / "changes").read_text().split()) == 1
    assert host.ask([Question(("echo", "back"))])[0].out == b"back\n"


def test_a_change_may_open_a_new_connection_when_the_kept_one_is_dead(sshd: Sshd) -> None:
    host = sshd.host()
    ppid = host.ask([Question(("sh", "-c", "ps -o ppid= -p $PPID"))])[0].text.strip()
    host.ask([Question(("sh", "-c", f"(sleep 0.1; kill -9 {ppid}) > /dev/null 2>&1 &"))])
    time.sleep(0.6)
    assert host.ask([Question(("echo", "changed"), changes=True)])[0].out == b"changed\n"


def test_a_lost_connection_ends_the_programs_there(sshd: Sshd) -> None:
    host = sshd.host()
    script = "trap '' HUP; (sleep 0.3; kill -9 $(ps -o ppid= -p $PPID)) & exec sleep 311.25"
    with pytest.raises(ConnectionLostError):
        host.ask([Question(("sh", "-c", script), timeout_s=60, changes=True)])
    assert becomes(lambda: not find_processes("311.25"), 3.0)


def test_closing_the_connection_ends_the_programs_there(sshd: Sshd) -> None:
    host = sshd.host()
    question = Question(("sleep", "312.25"), timeout_s=60, changes=True)

    def ask() -> None:
        with suppress(ConnectionLostError):
            host.ask([question])

    hanging = threading.Thread(target=ask)
    hanging.start()
    assert becomes(lambda: bool(find_processes("312.25")), 5.0)
    host.close()
    hanging.join(5)
    assert not hanging.is_alive()
    assert becomes(lambda: not find_processes("312.25"), 3.0)


def failure(host: SshHost) -> UnreachableError:
    with pytest.raises(UnreachableError) as raised:
        host.ask([TRUE])
    return raised.value


def test_refused_is_tried_three_times_and_a_name_that_does_not_exist_once(sshd: Sshd) -> None:
    began = time.monotonic()
    assert failure(sshd.host(port=free_port())).code == "ssh-no-sshd"
    assert 1.4 < time.monotonic() - began < 5, "three tries, with pauses of 0.5 and 1 s"
    error = failure(sshd.host(address="spark.invalid"))
    assert error.code == "name-unknown"
    assert not isinstance(error, ConnectionLostError), "trying again does not help"


def test_a_server_that_comes_back_while_we_try(make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd()
    server.stop()
    threading.Timer(0.8, server.start).start()
    assert server.host().ask([Question(("echo", "back"), changes=True)])[0].out == b"back\n"


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts and prints nothing, as a thrashing host does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_host_that_hangs_before_or_in_the_middle_of_the_login(
    sshd: Sshd, silent: int, make_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.hosts.ssh.BANNER_TIMEOUT_S", 1.0)
    monkeypatch.setattr("cluster.hosts.ssh.AUTH_TIMEOUT_S", 1.0)
    monkeypatch.setattr("cluster.hosts.wire.CONNECT_WITHIN_S", 1.0)
    assert failure(sshd.host(port=silent)).code == "ssh-banner-timeout"
    user = getpass.getuser()
    hangs = f"AuthorizedKeysCommand /bin/sleep 30\nAuthorizedKeysCommandUser {user}\nAuthorizedKeysFile none\n"
    assert failure(make_sshd(first=hangs).host()).code == "ssh-banner-timeout"


def test_a_host_that_does_not_answer_at_all_costs_what_the_error_says(sshd: Sshd) -> None:
    """The kernel repeats its SYN meanwhile, so another try adds nothing but time."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]  # the queue of the listener is full: further SYNs are dropped
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        host = SshHost("spark1", replace(sshd.host(port=port).target, connect_timeout_s=2.0))
        began = time.monotonic()
        error = failure(host)
        waited = time.monotonic() - began
        assert isinstance(error, ConnectionLostError)
        assert "did not answer within 2 s" in error.what
        assert 2 <= waited < 3
        for each in waiting:
            each.close()


def test_a_way_that_failed_slowly_is_not_tried_again(sshd: Sshd, tmp_path: Path) -> None:
    """As `ssh -W` does when a jump host does not answer: after its own ConnectTimeout."""
    command = f"sh -c 'echo run >> {tmp_path}/log; sleep 3.2; echo timed out >&2; exit 1'"
    error = failure(SshHost("spark1", replace(sshd.host().target, proxy_command=command)))
    assert "timed out" in error.what
    assert (tmp_path / "log").read_text() == "run\n"


def test_the_server_ends_the_connection_at_once(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.hosts.wire.TRIES", 1)
    with socket.socket() as rude:
        rude.bind(("127.0.0.1", 0))
        rude.listen()
        threading.Thread(target=lambda: rude.accept()[0].close(), daemon=True).start()
        assert failure(sshd.host(port=rude.getsockname()[1])).code == "ssh-broken"


def test_what_has_to_be_answered_is_asked_until_the_host_is_back(make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd()
    fleet = Fleet([server.host("spark1")])
    assert fleet.ask_all([TRUE])["spark1"].error is None
    server.stop()
    fleet.close()
    told: list[str] = []
    threading.Timer(5, server.start).start()
    answers = fleet.keep_asking({"spark1": [Question(("echo", "back"))]}, told.append)
    assert answers["spark1"][0].out == b"back\n"
    assert told[0].startswith("spark1 unreachable for ")
    assert told[-1] == ""


def test_a_change_that_could_not_be_sent_is_known_not_to_be(sshd: Sshd) -> None:
    with pytest.raises(ConnectionLostError) as raised:
        sshd.host(port=free_port()).ask([Question(("true",), changes=True)])
    assert not raised.value.sent


@pytest.fixture
def fleet(sshd: Sshd) -> Fleet:
    cancel = Cancel()
    made = Fleet([sshd.host("spark1", cancel), sshd.host("spark2", cancel)], cancel=cancel)
    made.ask_all([TRUE])  # connected
    return made


def press_ctrl_c(after_s: float) -> None:
    threading.Timer(after_s, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


@contextmanager
def interrupted(after_s: float, within_s: float, error: type[BaseException] = InterruptedByUser) -> Iterator[None]:
    """Ctrl-C is pressed in the block, which ends with this error in less than so many seconds."""
    press_ctrl_c(after_s)
    began = time.monotonic()
    with pytest.raises(error):
        yield
    assert time.monotonic() - began < within_s


def test_questions_end_at_once(fleet: Fleet) -> None:
    with interrupted(0.5, 2):
        fleet.ask_all([Question(("sleep", "331.25"), timeout_s=60)])
    assert becomes(lambda: not find_processes("331.25"), 3.0)


def test_a_change_under_way_is_awaited(fleet: Fleet, tmp_path: Path) -> None:
    change = Question(("sh", "-c", f"sleep 1.5; echo done >> {tmp_path}/log"), changes=True)
    with interrupted(0.4, 4):
        fleet.ask({"spark1": [change], "spark2": [Question(("sleep", "332.25"), timeout_s=60)]})
    assert (tmp_path / "log").read_text() == "done\n"


def test_a_change_that_takes_too_long_is_ended(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.hosts.wire.CHANGE_PATIENCE_S", 0.5)
    with interrupted(0.3, 4):
        fleet.ask({"spark1": [Question(("sleep", "333.25"), timeout_s=60, changes=True)]})
    assert becomes(lambda: not find_processes("333.25"), 3.0)


def test_a_second_ctrl_c_leaves_at_once(fleet: Fleet) -> None:
    press_ctrl_c(0.9)
    with interrupted(0.4, 2, KeyboardInterrupt):
        fleet.ask({"spark1": [Question(("sleep", "5"), changes=True)]})


def test_undo_works_in_a_fresh_scope_and_what_was_left_behind_does_not(fleet: Fleet, tmp_path: Path) -> None:
    going_on = Question(("sh", "-c", f"echo went on >> {tmp_path}/log"), changes=True)

    def stubborn(host: object) -> None:
        time.sleep(2)
        fleet["spark1"].ask([going_on])

    press_ctrl_c(0.3)
    with pytest.raises(InterruptedByUser):
        fleet.each(stubborn)
    with pytest.raises(InterruptedByUser):
        fleet.ask_all([TRUE])
    fleet.cancel.renew()
    undone = fleet.ask_all([Question(("echo", "undone"), changes=True)])
    assert [outcome.get()[0].text for outcome in undone.values()] == ["undone\n", "undone\n"]
    time.sleep(1.5)
    assert not (tmp_path / "log").exists(), "a worker left behind by Ctrl-C does not go on under the undo"


def test_connecting_is_interrupted_too(sshd: Sshd, silent: int) -> None:
    cancel = Cancel()
    fleet = Fleet([sshd.host("spark1", cancel, port=silent)], cancel=cancel)
    with interrupted(0.4, 1.5):
        fleet.ask_all([TRUE])


def test_a_hanging_host_does_not_hold_up_the_end_of_the_program(fleet: Fleet) -> None:
    with interrupted(0.3, 3):
        fleet.each(lambda host: time.sleep(30))


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change places as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_many_are_prepared_at_once(hasty: None) -> None:
    target: Any = SimpleNamespace(hostname="192.168.1.41", user="nvidia", port=22)
    sock: Any = None
    trust: Any = SimpleNamespace()
    failed: list[Exception] = []

    def prepare() -> None:
        try:
            for _ in range(50):
                _prepare("spark1", target, trust, sock)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
