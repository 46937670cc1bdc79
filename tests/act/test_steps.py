"""Every changing step of `up` and `down` × every way it can go wrong × what comes next: the hosts are right each time.

A change is counted from 1 on each host. Each way is tried at each change of each host; afterwards `up` is run on one
copy of the desk and `down` on another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from machine import DATA, IMAGE, Desk, Killed, Stranger
from typed import write_files

from cluster.actions import down, up
from cluster.actions.reach import Named
from cluster.config.inventory import InventoryFile
from cluster.config.load import read_inventory, read_recipe
from cluster.config.names import resolve_hosts
from cluster.errors import ClusterError, InterruptedByUser
from cluster.plan.wanted import Wanted
from cluster.screen import Screen

TOKEN = "hf_planted_0123456789"
HUB_TOKEN = "hf_hub_0123456789"


class Silent(Screen):
    """Nobody looks."""

    def line(self, text: str = "") -> None: ...
    def note(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def good(self, text: str) -> None: ...
    def table(self, title: str, columns: object, rows: object) -> None: ...


def read() -> tuple[Named, Wanted]:
    """The hosts, and a deployment of both of them, with a secret."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        file = InventoryFile(read_inventory(Path(folder, "inventory/default.yaml")))
        recipe = read_recipe(Path(folder, "recipes/toy.yaml"))
    named = Named(file, tuple(resolve_hosts(file, [], lambda name: False)), False)
    return named, Wanted(recipe, named.hosts, 2, 1, "ray", secrets={"HF_TOKEN": TOKEN, "VLLM_API_KEY": "key-1234"})


NAMED, OLD = read()
NEW = replace(OLD, env={"SEED": "2"})


def run_up(desk: Desk, wanted: Wanted = NEW) -> None:
    up.start(wanted, up.Options(dry_run=False, yes=True, hub_token=HUB_TOKEN), Silent(), desk.connect)


def run_down(desk: Desk, wanted: Wanted = NEW) -> None:
    down.take(NAMED, Silent(), desk.connect, dry_run=False)


def empty() -> Desk:
    """Two machines on which only strangers live."""
    desk = Desk("spark1", "spark2")
    for machine in desk:
        machine.strangers = [Stranger(50, "ollama", 11434, 2 << 30, on_gpu=True)]
        machine.docker.answer(
            (
                "run",
                "--detach",
                "--restart",
                "always",
                "--name",
                f"webui-{machine.name}",
                "--entrypoint",
                "sleep",
                IMAGE,
            )
        )
    return desk


def with_old() -> Desk:
    desk = empty()
    run_up(desk, OLD)
    return desk


def without_files() -> Desk:
    """The image is missing on the worker, the gated model on both."""
    desk = empty()
    desk.hub_token = HUB_TOKEN
    for machine in desk:
        machine.docker.registry = dict(machine.docker.images)
        machine.models.clear()
    desk["spark2"].docker.images.clear()
    return desk


def strangers(desk: Desk) -> dict[str, tuple[str, str, int]]:
    """Their containers: id, state, starts beyond those after a reboot."""
    return {
        one.name: (one.id, one.state, one.starts - machine.boots)
        for machine in desk
        for one in machine.docker.containers.values()
        if one.name.startswith("webui")
    }


def check_only(desk: Desk, deployment: str | None) -> None:
    """Exactly this deployment serves and nothing else of ours is there; None: nothing of ours at all."""
    assert list(desk.serving()) == ([deployment] if deployment else [])
    for machine in desk:
        ours = [one for one in machine.docker.containers.values() if not one.name.startswith("webui")]
        assert [(one.labels["cluster.deployment"], one.state) for one in ours] == (
            [(deployment, "running")] if deployment else []
        )
        assert machine.kept() == ([deployment] if deployment else [])
        stray = [name for name in machine.files if not name.startswith(f"{DATA}/deployments/{deployment}/")]
        assert stray == []
        secret = [data for data, _ in machine.files.values() if TOKEN.encode() in data or HUB_TOKEN.encode() in data]
        assert len(secret) == (deployment is not None)
    check_untouched(desk)


def check_untouched(desk: Desk) -> None:
    assert strangers(desk) == strangers(empty())
    for machine, fresh in zip(desk, empty(), strict=True):
        assert machine.strangers == fresh.strangers
        if not desk.hub_token:
            assert machine.docker.images == fresh.docker.images
            assert machine.models == fresh.models


def fault(desk: Desk, host: str, way: str, number: int) -> None:
    """Arrange that something goes wrong at a host's n-th change."""
    line = desk.hosts[host]
    match way:
        case "error":
            line.faults.fail_at = number
        case "ctrl-c":
            line.faults.interrupt_at = number
        case "lost answer":
            line.faults.lose_answer_of = number
        case "unreachable":
            line.dropped_at = number
        case "killed":
            line.killed_at = number


WAYS = ("error", "ctrl-c", "lost answer", "unreachable", "killed")
ACTS: dict[str, tuple[Callable[[], Desk], Callable[[Desk], None]]] = {
    "fresh up": (empty, run_up), "replacing up": (with_old, run_up), "fetching up": (without_files, run_up),
    "down": (with_old, run_down),
}  # fmt: skip


def ids() -> tuple[str, str]:
    """The deployment ids of old and new."""
    desk = with_old()
    [old] = desk.serving()
    run_up(desk)
    [new] = desk.serving()
    return old, new


def cases() -> Iterator[tuple[str, str, int, str]]:
    for act, (begin, run) in ACTS.items():
        desk = begin()
        run(desk)
        for host, line in desk.hosts.items():
            for number in range(1, line.changes + 1):
                for way in WAYS:
                    yield act, host, number, way


OLD_ID, NEW_ID = ids()
CASES = list(cases())


@pytest.fixture(scope="module")
def begun() -> dict[str, Desk]:
    """The desk before each act, to be copied."""
    return {act: begin() for act, (begin, _) in ACTS.items()}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize(("act", "host", "number", "way"), CASES, ids=lambda value: str(value).replace(" ", "-"))
def test_step(act: str, host: str, number: int, way: str, begun: dict[str, Desk]) -> None:
    desk = begun[act].copy()
    fault(desk, host, way, number)
    ended = carry_out(ACTS[act][1], desk)
    check_end(act, way, ended, desk)
    desk.recover()
    if way not in ("unreachable", "killed"):
        check_at_once(act, ended, desk)
    check_untouched(desk)
    for follow_up, expected in ((run_up, NEW_ID), (run_down, None)):
        after = desk.copy()
        follow_up(after)
        check_only(after, expected)


def carry_out(run: Callable[[Desk], None], desk: Desk) -> Exception | None:
    try:
        run(desk)
    except (ClusterError, Killed) as error:
        return error
    return None


def check_end(act: str, way: str, ended: Exception | None, desk: Desk) -> None:
    """It ended as it should; what was lost may have been settled."""
    if way == "killed":
        assert isinstance(ended, Killed)
    elif way == "ctrl-c":
        assert isinstance(ended, InterruptedByUser)
    elif way in ("error", "unreachable") and ended is None:
        assert list(desk.serving()) in ([NEW_ID], []), "it may end well only when the new one serves already"


def check_at_once(act: str, ended: Exception | None, desk: Desk) -> None:
    """Without any help: the old deployment, the new one, or nothing."""
    if act == "down":
        return  # a `down` that failed is not put back, and says so
    [*serving] = desk.serving()
    if ended is None or serving == [NEW_ID]:
        assert serving == [NEW_ID]
        return
    desk.pass_time(10)
    check_only(desk, OLD_ID if act == "replacing up" else None)


def test_the_matrix_is_whole() -> None:
    """The probe, mkdir, nine files, run; to replace also stop, remove, forget; to fetch also pull, token and model."""
    counts = {act: max(number for one, _, number, _ in CASES if one == act) for act in ACTS}
    assert counts == {"fresh up": 12, "replacing up": 15, "fetching up": 17, "down": 3}
    assert {host for _, host, _, _ in CASES} == {"spark1", "spark2"}


# while nothing is changed, and everybody waits


def waits(act: str) -> int:
    """How often an act waits."""
    begin, run = ACTS[act]
    desk = begin()
    desk.sleeps = 0
    run(desk)
    return desk.sleeps


def ctrl_c() -> None:
    raise KeyboardInterrupt


def ctrl_c_twice(desk: Desk) -> None:
    """The second one while it puts back."""
    for line in desk.hosts.values():
        line.faults.interrupt_at = line.changes + 1
    raise KeyboardInterrupt


def killed_while_it_puts_back(desk: Desk, later: int) -> None:
    for line in desk.hosts.values():
        line.killed_at = line.changes + later
    desk.kill_rank("spark2")


EVENTS: dict[str, Callable[[Desk], Callable[[], None]]] = {
    "ctrl-c": lambda desk: ctrl_c,
    "ctrl-c twice": lambda desk: lambda: ctrl_c_twice(desk),
    "killed": lambda desk: desk.kill,
    "killed at the first undo": lambda desk: lambda: killed_while_it_puts_back(desk, 1),
    "killed at the second undo": lambda desk: lambda: killed_while_it_puts_back(desk, 2),
    "killed at the third undo": lambda desk: lambda: killed_while_it_puts_back(desk, 3),
    "head unreachable": lambda desk: desk.hosts["spark1"].drop,
    "worker unreachable": lambda desk: desk.hosts["spark2"].drop,
    "head's rank killed": lambda desk: lambda: desk.kill_rank("spark1"),
    "worker's rank killed": lambda desk: lambda: desk.kill_rank("spark2"),
    "worker rebooted": lambda desk: lambda: desk.reboot("spark2"),
    "lock lost": lambda desk: desk.hosts["spark2"].end_processes,
}
WAITS = [
    (act, number, event)
    for act in ("fresh up", "replacing up")
    for number in range(1, waits(act) + 1)
    for event in EVENTS
]


@pytest.mark.parametrize(("act", "number", "event"), WAITS, ids=lambda value: str(value).replace(" ", "-"))
def test_wait(act: str, number: int, event: str, begun: dict[str, Desk]) -> None:
    desk = begun[act].copy()
    desk.sleeps = 0
    happen = EVENTS[event](desk)
    desk.on_sleep.append(lambda: happen() if desk.sleeps == number else None)
    ended = carry_out(ACTS[act][1], desk)
    if event != "lost lock" and ended is None:
        assert list(desk.serving()) in ([NEW_ID], []), "nobody noticed"
    desk.recover()
    if event in ("ctrl-c", "head's rank killed", "worker's rank killed", "lock lost"):
        check_at_once(act, ended, desk)
    check_untouched(desk)
    for follow_up, expected in ((run_up, NEW_ID), (run_down, None)):
        after = desk.copy()
        follow_up(after)
        check_only(after, expected)


def test_down_is_interrupted_while_memory_comes_back(begun: dict[str, Desk]) -> None:
    desk = begun["down"].copy()
    desk["spark2"].lingering_bytes = 20 << 30
    desk.on_sleep.append(ctrl_c)
    with pytest.raises((InterruptedByUser, KeyboardInterrupt)):
        run_down(desk)
    assert desk["spark2"].kept() == [OLD_ID], "what tells the memory before is kept until the proof"
    desk.recover()
    desk["spark2"].lingering_bytes = 0
    run_down(desk)
    check_only(desk, None)


def test_a_probe_of_a_killed_operator_is_ended(begun: dict[str, Desk]) -> None:
    """The operator died during the probe and during a download; both go on in their containers."""
    for act, expected in (("fresh up", NEW_ID), ("down", None)):
        desk = begun[act].copy()
        for name in ("cluster-try-toy", "cluster-download"):
            words = ("run", "--detach", "--name", name, "--label", "cluster.try=1", "--entrypoint", "sleep", IMAGE, "9")
            desk["spark2"].docker.answer(words)
        ACTS[act][1](desk)
        check_only(desk, expected)
