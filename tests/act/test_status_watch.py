"""`cluster status --watch` over simulated machines: changes are said once, acts are bounded, nothing ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machine import Desk
from typed import UP, Ran, Typed

GIB = 1 << 30
SPINS = "NVIDIA GB10, 580.95.05, [N/A], [N/A], 20.3, 2405, 51, 95, 0x0000000000000000, [N/A]\n"
WORKS = "NVIDIA GB10, 580.95.05, [N/A], [N/A], 45.1, 2411, 61, 96, 0x0000000000000000, [N/A]\n"
CAPPED = "NVIDIA GB10, 580.95.05, [N/A], [N/A], 16.4, 611, 47, 96, 0x0000000000000004, [N/A]\n"


def gpus(desk: Desk, said: str) -> None:
    """What nvidia-smi says on every machine."""
    for machine in desk:
        machine.smi = (0, said)


def serve(desk: Desk, *, running: int, tokens: int = 0) -> None:
    """So many requests run on every head, and so many tokens more have come."""
    for life in desk.lives():
        life.counts["num_requests_running"] = float(running)
        life.counts["generation_tokens_total"] += tokens


def hang(desk: Desk) -> None:
    """Requests run, no token comes, both GPUs spin."""
    gpus(desk, SPINS)
    serve(desk, running=2)


def held(why: str) -> dict[str, Any]:
    """A machine's lock as it tells it while somebody holds it."""
    return {"value": {"held": True, "who": "ada", "since": 0.0, "why": why}}


Event = Callable[[], Any]


def watch(cluster: Typed, seconds: float, *words: str, at: dict[float, Event] | None = None) -> Ran:
    """Watch for so long, then press Ctrl-C; `at`: what happens meanwhile, by seconds."""
    desk, began, events = cluster.desk, cluster.desk.now, dict(at or {})

    def pass_by() -> None:
        for when in sorted(events):
            if desk.now - began >= when:
                events.pop(when)()
        if desk.now - began >= seconds:
            desk.on_sleep.clear()
            raise KeyboardInterrupt

    desk.on_sleep.append(pass_by)
    return cluster("status", "--watch", *words)


def lines(ran: Ran) -> list[str]:
    """The lines that say a change, without time and deployment."""
    found = re.findall(r"^\d\d:\d\d:\d\d (?:toy-\w{8}: )?(.*)$", ran.out, re.M)
    return [line for line in found if not line.startswith("watching ")]


def containers(desk: Desk) -> list[tuple[str, int, str]]:
    """Container, how often it was started, its state."""
    return [(one.name, one.starts, one.state) for machine in desk for one in machine.docker.containers.values()]


def never_restarted(desk: Desk) -> bool:
    return {starts for _, starts, _ in containers(desk)} == {1}


@pytest.fixture
def pair(cluster: Typed) -> Typed:
    """Two machines that serve."""
    cluster.must(*UP)
    gpus(cluster.desk, WORKS)
    return cluster


def test_a_healthy_pair_is_silent(pair: Typed, desk: Desk) -> None:
    desk.on_sleep.append(lambda: serve(desk, running=1, tokens=100))
    ran = watch(pair, 600)
    assert (ran.code, lines(ran)) == (130, [])
    assert "watching example/toy on spark1, spark2" in ran.out
    assert all(host.changes == 0 for host in desk.hosts.values())


def test_a_wedge_is_reported_once_with_what_was_seen_and_what_to_do(pair: Typed, desk: Desk) -> None:
    ran = watch(pair, 600, at={60: lambda: hang(desk)})
    [line] = lines(ran)
    assert line.startswith("fault: wedge: no token came for ")
    assert "seen: generation_tokens_total 0, /health 200; spark1 95 % busy at 20 W, 2405 MHz; spark2 95 %" in ran.out
    assert "restart all ranks together" in ran.out
    assert "docs/runbooks/it-hangs.md #wedged" in ran.out


def test_json_is_one_object_a_line(pair: Typed, desk: Desk) -> None:
    def recover() -> None:
        gpus(desk, WORKS)
        serve(desk, running=0, tokens=10)

    ran = watch(pair, 300, "--json", at={60: lambda: hang(desk), 200: recover})
    watching, raised, over = [json.loads(line) for line in ran.out.splitlines()]
    assert [one["event"] for one in (watching, raised, over)] == ["watching", "raised", "over"]
    shown = {key: raised["finding"][key] for key in ("level", "check", "host", "runbook")}
    assert shown == {"level": "fault", "check": "wedge", "host": "", "runbook": "it-hangs#wedged"}
    assert raised["deployment"] == over["deployment"] == watching["deployment"] != ""
    assert over["after_s"] > 100


def typed(cluster: Typed, *words: str) -> Event:
    """Somebody else types a command meanwhile."""

    def type_it() -> None:
        events, cluster.desk.on_sleep = cluster.desk.on_sleep, []
        assert cluster(*words).code == 0
        cluster.desk.on_sleep = events

    return type_it


def test_what_comes_and_goes_is_followed(cluster: Typed) -> None:
    ran = watch(cluster, 100, at={30: typed(cluster, *UP)})
    assert "watching example/toy on spark1, spark2" in ran.out
    gone = "it is no longer there: taken down or replaced"
    assert lines(watch(cluster, 200, at={60: typed(cluster, "down")})) == [gone]


DIED = "fault: rank on spark2: its rank has ended: container exited, exit 137"


def test_a_start_under_way_is_no_fault(pair: Typed, desk: Desk) -> None:
    """Whoever holds the lock to start or stop something is not reported on."""
    desk["spark1"].missing["lock"] = held("up toy")
    assert lines(watch(pair, 120, at={30: lambda: desk.kill_rank("spark2")})) == []
    desk["spark1"].missing["lock"] = held("bench x")
    assert lines(watch(pair, 60)) == [DIED]
    del desk["spark1"].missing["lock"]
    assert lines(watch(pair, 60)) == [DIED]


def test_a_rank_that_reports_its_end_is_named_before_its_container_ends(pair: Typed, desk: Desk) -> None:
    """It gives its engine seconds to end; the server is gone at once."""

    def end() -> None:
        [head], [worker] = desk["spark1"].lives(), desk["spark2"].lives()
        head.serving = False
        worker.tell("ended", why="engine exited with 0: RayWorkerProc rank=[0] died", exit=1)

    found = lines(watch(pair, 60, at={30: end}))
    assert found == ["fault: rank on spark2: its rank has ended: engine exited with 0: RayWorkerProc rank=[0] died"]
    assert {state for _, _, state in containers(desk)} == {"running"}


def test_a_host_that_does_not_answer_is_waited_for(pair: Typed, desk: Desk) -> None:
    host = desk.hosts["spark2"]

    def answer() -> None:
        host.faults.unreachable = None

    ran = watch(pair, 400, at={60: host.drop, 200: answer})
    assert lines(ran) == ["spark2 does not answer: spark2 did not answer within 10 s", "spark2 answers again"]
    assert host.closed, "its connections are closed, so that the next look makes a new one"
    for each in desk.hosts.values():
        each.drop()
    ran = watch(pair, 60)
    assert (ran.code, len(lines(ran))) == (130, 3), "and that nothing runs yet"


def test_what_cannot_be_read_is_no_finding(pair: Typed, desk: Desk) -> None:
    for machine in desk:
        machine.smi = (9, "NVIDIA-SMI has failed")
        machine.missing |= {name: {"missing": "no", "kind": "refused"} for name in ("links", "memory", "lock")}
    serve(desk, running=2)
    [line] = lines(watch(pair, 300))
    assert line.endswith("whether spark1, spark2 works is not known, not judged yet")
    desk["spark2"].docker.trouble = (1, "Cannot connect to the Docker daemon")
    serve(desk, running=0)
    assert lines(watch(pair, 300)) == []


def test_links_and_clocks(pair: Typed, desk: Desk) -> None:
    def pull() -> None:
        for port in desk["spark2"].ports:
            port.state = "DOWN"

    ran = watch(pair, 300, at={60: pull, 120: lambda: gpus(desk, CAPPED)})
    found = ["link on spark2", "clocks on spark1", "clocks on spark2"]
    assert [line.partition(": the ")[0] for line in lines(ran)] == [f"fault: {one}" for one in found]


def test_sigterm_is_a_good_end(pair: Typed) -> None:
    before = signal.getsignal(signal.SIGTERM)
    ran = watch(pair, 60, at={30: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    assert ran.code == 0
    assert ran.err == ""
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_users_command_gets_the_finding(pair: Typed, desk: Desk, place: Path) -> None:
    script = place / "page"
    script.write_text(
        '#!/bin/sh\necho "$CLUSTER_FINDING $CLUSTER_DEPLOYMENT" >>told\ncat >>told\necho no pager; exit 3\n'
    )
    script.chmod(0o755)
    ran = watch(pair, 300, "--on-wedge", "command", "--command", f"{script} now", at={60: lambda: hang(desk)})
    first, second = (place / "told").read_text().splitlines()
    check, deployment = first.split()
    assert (check, deployment[:4]) == ("wedge", "toy-")
    given = json.loads(second)
    assert (given["deployment"], given["check"], given["level"]) == (deployment, "wedge", "fault")
    assert lines(ran)[1] == f"{script} exited with 3: no pager"
    assert len(lines(ran)) == 2, "once"


def test_a_command_that_is_not_there_or_hangs(pair: Typed, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.cli.watch.COMMAND_S", 0.2)
    words = ("--on-wedge", "command", "--command")
    ran = watch(pair, 150, *words, "no-such-program x", at={10: lambda: hang(desk)})
    assert lines(ran)[1] == "no-such-program cannot be run: No such file or directory"
    assert lines(watch(pair, 90, *words, "sleep 60"))[1] == "sleep was ended after 0 s"


def test_a_restart_of_all_ranks_cures_a_wedge(pair: Typed, desk: Desk) -> None:
    before = containers(desk)
    argv = [tuple(one.args) for machine in desk for one in machine.docker.containers.values()]

    def work() -> None:
        if all(starts == 2 for _, starts, _ in containers(desk)):
            gpus(desk, WORKS)

    desk.on_sleep.append(work)
    ran = watch(pair, 300, "--on-wedge", "restart", at={60: lambda: hang(desk)})
    told = lines(ran)
    assert told[1] == "restarting all ranks for wedge (1 of 3)"
    assert re.fullmatch(r"restarted, and it serves again after \d+ s", told[2])
    assert told[3].startswith("over: wedge, after ")
    assert told[4:] == ["its ranks were restarted"]
    assert containers(desk) == [(name, 2, "running") for name, _, _ in before]
    assert [tuple(one.args) for machine in desk for one in machine.docker.containers.values()] == argv
    assert [machine.audit[-1]["what"][:5] for machine in desk] == ["start", "start"]
    assert all(host.lock_holder is None for host in desk.hosts.values())


def test_restarts_are_counted_and_their_pauses_grow(pair: Typed, desk: Desk) -> None:
    """A pair that hangs again as soon as it serves: three restarts, at least one and five minutes apart, then words."""
    begun: list[float] = []

    def hang_again() -> None:
        hang(desk)
        starts = containers(desk)[0][1]
        if len(begun) < starts - 1:
            begun.append(desk.now)

    desk.on_sleep.append(hang_again)
    ran = watch(pair, 3600, "--on-wedge", "restart")
    assert len(begun) == 3
    assert begun[1] - begun[0] >= 60
    assert begun[2] - begun[1] >= 300
    assert containers(desk)[0][1] == 4
    assert lines(ran)[-1] == "not restarted: 3 restarts were made, as many as --max-restarts allows"
    assert sum("a pause of 5 min comes first" in line for line in lines(ran)) == 1


def test_never_for_memory(pair: Typed, desk: Desk) -> None:
    def press() -> None:
        for machine in desk:
            machine.lingering_bytes = machine.available_bytes - 3 * GIB

    def kill_for_memory() -> None:
        press()
        desk.kill_rank("spark2")
        for machine in desk:
            machine.lingering_bytes = 0

    ran = watch(pair, 300, "--on-wedge", "restart", at={30: press, 60: kill_for_memory})
    assert "not restarted: it ended for memory: restarts would make it worse" in lines(ran)
    assert never_restarted(desk)


def test_memory_that_does_not_come_back_ends_the_restarts(pair: Typed, desk: Desk) -> None:
    def leak() -> None:
        desk["spark2"].lingering_bytes = 30 * GIB

    ran = watch(pair, 900, "--on-wedge", "restart", at={20: leak, 60: lambda: hang(desk)})
    told = lines(ran)
    assert "restart failed: spark2: " in told[2]
    assert "less memory than before up: the ranks stay stopped" in told[2]
    assert {state for _, _, state in containers(desk)} == {"exited"}
    assert told[-1] == "not restarted: it was asked to end"
    assert never_restarted(desk)


def test_no_restart_while_somebody_is_at_work(pair: Typed, desk: Desk) -> None:
    def free() -> None:
        del desk["spark2"].missing["lock"]
        gpus(desk, WORKS)

    desk["spark2"].missing["lock"] = held("bench x")
    ran = watch(pair, 240, "--on-wedge", "restart", at={60: lambda: hang(desk), 200: free})
    assert lines(ran)[1:2] == ["not restarted: ada is at work: bench x"]
    assert sum("not restarted" in line for line in lines(ran)) == 1, "said once"
    assert never_restarted(desk)
    desk.hosts["spark2"].lock_holder = {"who": "ada", "since": 0.0, "why": "bench x"}
    desk["spark2"].missing["lock"] = {"value": {"held": False}}
    hang(desk)
    ran = watch(pair, 60, "--on-wedge", "restart")
    assert lines(ran)[1].startswith("not restarted: spark2 is locked by ada"), "taken just then"
    assert never_restarted(desk)
    assert desk.hosts["spark1"].lock_holder is None


def test_no_restart_while_a_host_is_silent(pair: Typed, desk: Desk) -> None:
    off = {15: desk.hosts["spark2"].drop, 20: lambda: desk.kill_rank("spark1")}
    ran = watch(pair, 200, "--on-wedge", "restart", at=off)
    assert lines(ran)[-1] == "not restarted: spark2 does not answer"
    assert never_restarted(desk)


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_a_restart_that_is_interrupted(again: bool, pair: Typed, desk: Desk) -> None:
    """It leaves no stopped ranks; interrupted twice it says which ranks stay stopped."""
    hang(desk)

    def press() -> None:
        raise KeyboardInterrupt

    def press_once() -> None:
        if all(state == "exited" for _, _, state in containers(desk)):
            desk.on_sleep.clear()
            press()

    for machine in desk:
        machine.lingering_bytes = 30 * GIB
    desk.on_sleep.append(press_once)
    if again:
        desk.when_asked("spark2", "docker start", press)
    ran = watch(pair, 3600, "--on-wedge", "restart", "--json")
    told = [json.loads(line) for line in ran.out.splitlines()][-1]
    assert ran.code == 130
    if again:
        assert told["event"] == "restart-interrupted"
        assert "spark2: " in told["text"]
    else:
        assert [(starts, state) for _, starts, state in containers(desk)] == [(2, "running")] * 2


@pytest.mark.parametrize(
    "words",
    ["--interval 0", "--on-wedge command", "--command x", "--max-restarts 0", "--command x --on-wedge restart"],
)
def test_words_that_do_not_fit(cluster: Typed, words: str) -> None:
    assert cluster("status", "--watch", *words.split()).code == 2


def test_unit(cluster: Typed, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = cluster("status", "--print-unit", "--on-wedge", "restart", "--max-restarts", "1")
    assert f"ExecStart={sys.executable} -m cluster.cli.main status --watch" in ran.out
    assert "--on-wedge restart --max-restarts 1\n" in ran.out
    program = place / "bin" / "cluster"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    asked = ("--print-unit", "-n", "spark1,spark2", "--on-wedge", "command", "--command", 'page "50 %" $X')
    ran = cluster("status", "--watch", *asked)
    assert (ran.code, ran.err) == (0, "")
    words = f"{program} status --watch --interval 10 --inventory {place}/inventory/default.yaml --nodes spark1,spark2 "
    words += '--on-wedge command --command "page \\"50 %%\\" $$X"'
    expected = {"Description=cluster status --watch (spark1, spark2)", "User=ada", f"ExecStart={words}"}
    assert expected <= set(ran.out.splitlines())
