"""Every changing step of `up` and `down` × every way it can go wrong × what comes next: the hosts are right each time.

Each way is tried at each change of each host; afterwards `up` is run on one copy of the desk and `down` on another.
The changes are listed here, so that collecting runs nothing of the product, and compared with those it makes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from machine import DATA, IMAGE, Desk, Killed, Machine, Stranger
from typed import write_files

from cluster.cli import down, up
from cluster.cli.options import UpOptions
from cluster.config.inventory import InventoryFile, read_inventory, resolve_hosts
from cluster.config.recipe import read_recipe
from cluster.deploy.session import Named
from cluster.errors import ClusterError, ExitCode, InterruptedByUser, ManyErrors
from cluster.screen import Screen
from cluster.spark.request import Wanted

TOKEN = "hf_planted_0123456789"
LIMIT_MHZ = 2000
HUB_TOKEN = "hf_hub_0123456789"


@pytest.fixture(autouse=True)
def hub_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", HUB_TOKEN)


class Silent(Screen):
    """Nobody looks; what is warned of is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.warned: list[str] = []

    def line(self, text: str = "") -> None: ...
    def note(self, text: str) -> None: ...
    def good(self, text: str) -> None: ...
    def table(self, title: str, columns: object, rows: object) -> None: ...

    def warn(self, text: str) -> None:
        self.warned.append(text)


@cache
def read() -> tuple[Named, Wanted, Wanted]:
    """The hosts, and two deployments of both of them, with secrets: the old one and the new one."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        file = InventoryFile(read_inventory(Path(folder, "inventory/default.yaml")))
        recipe = read_recipe(Path(folder, "recipes/toy.yaml"))
    named = Named(file, tuple(resolve_hosts(file, [], lambda name: False)), False)
    old = Wanted(recipe, named.hosts, 2, 1, "ray", secrets={"HF_TOKEN": TOKEN, "VLLM_API_KEY": "key-1234"})
    return named, old, replace(old, env={"SEED": "2"})


def run_up(desk: Desk, *, old: bool = False, limited: bool = False) -> list[str]:
    """Start the new deployment, or the old one; what was warned of."""
    _, before, after = read()
    if limited:
        hosts = tuple(replace(host, sm_max_mhz=LIMIT_MHZ) for host in after.hosts)
        before, after = replace(before, hosts=hosts), replace(after, hosts=hosts)
    screen = Silent()
    up.start(before if old else after, UpOptions(yes=True, probe=False), screen, desk.connect)
    return screen.warned


def run_down(desk: Desk) -> list[str]:
    screen = Silent()
    down.take(read()[0], screen, desk.connect, dry_run=False)
    return screen.warned


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
    run_up(desk, old=True)
    return desk


def with_limit() -> Desk:
    """The old one, with GPU clocks limited."""
    desk = empty()
    run_up(desk, old=True, limited=True)
    return desk


def run_up_limited(desk: Desk) -> list[str]:
    return run_up(desk, limited=True)


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


def check_only(desk: Desk, deployment: str | None, limit_mhz: int | None = None) -> None:
    """Exactly this deployment serves and nothing else of ours is there; None: nothing of ours at all."""
    assert list(desk.serving()) == ([deployment] if deployment else [])
    for machine in desk:
        ours = [one for one in machine.docker.containers.values() if not one.name.startswith("webui")]
        assert [(one.labels["cluster.deployment"], one.state) for one in ours] == (
            [(deployment, "running")] if deployment else []
        )
        assert machine.kept() == ([deployment] if deployment else [])
        stray = [name for name in machine.files if not name.startswith(f"{DATA}/deployments/{deployment}/")]
        assert stray == ([f"{DATA}/clocks.json"] if limit_mhz else [])
        assert machine.gpu_limit_mhz == limit_mhz
        secret = [data for data, _ in machine.files.values() if TOKEN.encode() in data]
        assert len(secret) == (deployment is not None)
        assert not holds_hub_token(machine)
    check_untouched(desk)


def holds_hub_token(machine: Machine) -> bool:
    return any(HUB_TOKEN.encode() in data for data, _ in machine.files.values())


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
ACTS: dict[str, tuple[Callable[[], Desk], Callable[[Desk], list[str]]]] = {
    "fresh up": (empty, run_up),
    "replacing up": (with_old, run_up),
    "fetching up": (without_files, run_up),
    "down": (with_old, run_down),
    "limited up": (empty, run_up_limited),
    "limited replacing up": (with_limit, run_up_limited),
    "unlimited up": (with_limit, run_up),
    "limited down": (with_limit, run_down),
}
FILES = (
    "rank.py",
    "cord.py",
    "guard.py",
    "ray_nodes.py",
    "rank.json",
    "before.json",
    "carry env",
    "ray token",
    "secrets",
    "api key",
)
FRESH = ("try", "folder", *FILES, "run")
LIMITED = ("try", "clocks", *FRESH[1:])
REPLACING = ("try", "stop", "clocks", *FRESH[1:], "remove", "forget")
FETCHING = ("hub token", "hub folder", "download", "forget token", *FRESH)
CHANGES: dict[tuple[str, str], tuple[str, ...]] = {
    ("fresh up", "spark1"): FRESH,
    ("fresh up", "spark2"): FRESH,
    ("replacing up", "spark1"): ("try", "stop", "folder", *FILES, "run", "remove", "forget"),
    ("replacing up", "spark2"): ("try", "stop", "folder", *FILES, "run", "remove", "forget"),
    ("fetching up", "spark1"): FETCHING,
    ("fetching up", "spark2"): ("pull", *FETCHING),
    ("down", "spark1"): ("stop", "remove", "forget"),
    ("down", "spark2"): ("stop", "remove", "forget"),
    ("limited up", "spark1"): LIMITED,
    ("limited up", "spark2"): LIMITED,
    ("limited replacing up", "spark1"): REPLACING,
    ("limited replacing up", "spark2"): REPLACING,
    ("unlimited up", "spark1"): REPLACING,
    ("unlimited up", "spark2"): REPLACING,
    ("limited down", "spark1"): ("stop", "remove", "forget", "clocks"),
    ("limited down", "spark2"): ("stop", "remove", "forget", "clocks"),
}
REPLACES = ("replacing up", "limited replacing up", "unlimited up")
PROVEN = ("remove", "forget")
"""What `up` does after the proof: the new one serves, whatever becomes of these."""
DOWNS = ("down", "limited down")
WELL: dict[str, set[tuple[str, str]]] = {
    "error": {
        *((act, one) for act in REPLACES for one in PROVEN),
        ("fetching up", "hub folder"),
        ("fetching up", "forget token"),
    },
    "lost answer": {(act, change) for (act, _), changes in CHANGES.items() for change in changes},
    "unreachable": {(act, one) for act in REPLACES for one in PROVEN},
}
"""By way: where an act goes on and ends well all the same."""
CASES = [(act, host, change, way) for (act, host), changes in CHANGES.items() for change in changes for way in WAYS]


@cache
def ids() -> tuple[str, str]:
    """The deployment ids of old and new."""
    desk = with_old()
    [old] = desk.serving()
    run_up(desk)
    [new] = desk.serving()
    return old, new


@cache
def usual(act: str) -> set[str]:
    """What is warned of when nothing goes wrong."""
    begin, run = ACTS[act]
    return set(run(begin()))


@pytest.fixture(scope="module")
def begun() -> dict[str, Desk]:
    """The desk before each act, to be copied."""
    return {act: begin() for act, (begin, _) in ACTS.items()}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize("act", ACTS)
def test_these_are_the_changes_that_it_makes(act: str, begun: dict[str, Desk]) -> None:
    desk = begun[act].copy()
    ACTS[act][1](desk)
    made = {(act, host): line.changes for host, line in desk.hosts.items()}
    assert made == {key: len(changes) for key, changes in CHANGES.items() if key[0] == act}


@pytest.mark.parametrize(("act", "host", "change", "way"), CASES, ids=lambda value: str(value).replace(" ", "-"))
def test_step(act: str, host: str, change: str, way: str, begun: dict[str, Desk]) -> None:
    desk = begun[act].copy()
    fault(desk, host, way, CHANGES[act, host].index(change) + 1)
    ended, warned = carry_out(ACTS[act][1], desk)
    well = (act, change) in WELL.get(way, set())
    if well:
        assert ended is None
        check_success(act, warned, desk)
    else:
        check_failure(ended, host, way)
    desk.recover()
    if not well:
        check_at_once(act, change, host, way, desk)
    check_untouched(desk)
    check_next(desk)


def carry_out(run: Callable[[Desk], list[str]], desk: Desk) -> tuple[BaseException | None, list[str]]:
    """How it ended, and what was warned of when it ended well."""
    try:
        return None, run(desk)
    except (ClusterError, Killed) as error:
        return error, []


ENDS: dict[str, tuple[ExitCode, ...]] = {
    "error": (ExitCode.FAILED, ExitCode.REFUSED),
    "ctrl-c": (ExitCode.INTERRUPTED,),
    "unreachable": (ExitCode.UNREACHABLE,),
}


def check_failure(ended: BaseException | None, host: str, way: str) -> None:
    """It failed for the reason that was given, at the host where it happened."""
    if way == "killed":
        assert isinstance(ended, Killed)
        return
    assert isinstance(ended, ClusterError)
    assert ended.exit_code in ENDS[way]
    if way != "ctrl-c":
        errors = ended.errors if isinstance(ended, ManyErrors) else (ended,)
        assert {one.where.partition(",")[0] for one in errors} == {host}


def check_success(act: str, warned: list[str], desk: Desk) -> None:
    """The new one serves on both hosts; what could not be removed was said."""
    assert desk.serving() == ({} if act in DOWNS else {ids()[1]: ["spark1", "spark2"]})
    left = [machine.name for machine in desk if holds_hub_token(machine) or ids()[0] in machine.kept()]
    assert not left or set(warned) - usual(act), f"left on {left}, and nobody says so"


def check_at_once(act: str, change: str, host: str, way: str, desk: Desk) -> None:
    """Without any help: the new deployment after its proof, else the old one or nothing, wherever it could be undone.

    A `down` that failed is not undone; an operator who was killed undoes nothing.
    """
    if way == "killed" or act in DOWNS:
        return
    desk.pass_time(10)
    before_mhz = LIMIT_MHZ if ACTS[act][0] is with_limit else None
    if act in REPLACES and change in PROVEN:
        assert list(desk.serving()) == [ids()[1]]
    elif way != "unreachable":
        check_only(desk, ids()[0] if act in REPLACES else None, before_mhz)
    else:
        [reached] = [machine for machine in desk if machine.name != host]
        assert reached.kept() == ([ids()[0]] if act in REPLACES else [])
        assert reached.gpu_limit_mhz == before_mhz
        assert not holds_hub_token(reached)


def check_next(desk: Desk) -> None:
    """Whatever is there: the next `up` and the next `down` are right."""
    for follow_up, expected in ((run_up, ids()[1]), (run_down, None)):
        after = desk.copy()
        follow_up(after)
        check_only(after, expected)


# while nothing is changed, and everybody waits


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
SLEEPS = {"fresh up": 4, "replacing up": 4}
"""How often an act waits."""
WAITS = [(act, number, event) for act, sleeps in SLEEPS.items() for number in range(1, sleeps + 1) for event in EVENTS]
EVENT_ENDS: dict[str, tuple[ExitCode, str]] = {
    "ctrl-c": (ExitCode.INTERRUPTED, ""),
    "ctrl-c twice": (ExitCode.INTERRUPTED, ""),
    "head unreachable": (ExitCode.UNREACHABLE, "spark1"),
    "worker unreachable": (ExitCode.UNREACHABLE, "spark2"),
    "head's rank killed": (ExitCode.FAILED, "spark1"),
    "worker's rank killed": (ExitCode.FAILED, "spark2"),
    "worker rebooted": (ExitCode.FAILED, "spark2"),
}
"""How an act ends, and at which host; those that are not here end well, or with the operator."""


@pytest.mark.parametrize("act", SLEEPS)
def test_so_often_it_waits(act: str, begun: dict[str, Desk]) -> None:
    desk = begun[act].copy()
    desk.sleeps = 0
    ACTS[act][1](desk)
    assert desk.sleeps == SLEEPS[act]


@pytest.mark.parametrize(("act", "number", "event"), WAITS, ids=lambda value: str(value).replace(" ", "-"))
def test_wait(act: str, number: int, event: str, begun: dict[str, Desk]) -> None:
    desk = begun[act].copy()
    desk.sleeps = 0
    happen = EVENTS[event](desk)
    desk.on_sleep.append(lambda: happen() if desk.sleeps == number else None)
    ended, warned = carry_out(ACTS[act][1], desk)
    if event == "lock lost":
        assert ended is None
        check_success(act, warned, desk)
    else:
        check_event(act, event, ended, desk)
    desk.recover()
    check_untouched(desk)
    check_next(desk)


def check_event(act: str, event: str, ended: BaseException | None, desk: Desk) -> None:
    """It failed as it had to, and what could be undone was."""
    undone = [machine for machine in desk if machine.name != EVENT_ENDS.get(event, ("", ""))[1]]
    if event == "killed at the third undo" and act == "fresh up":  # there are but two: the rank's end is all it met
        assert isinstance(ended, ClusterError)
        assert ended.exit_code == ExitCode.FAILED
    elif event.startswith("killed"):
        assert isinstance(ended, Killed)
    else:
        code, host = EVENT_ENDS[event]
        assert isinstance(ended, ClusterError)
        assert (ended.exit_code, ended.where.partition(",")[0]) == (code, host)
    if event.startswith(("killed", "ctrl-c twice")):
        return
    desk.pass_time(10)
    if event.endswith(("unreachable", "rebooted")):
        for machine in undone:
            assert machine.kept() == ([ids()[0]] if act == "replacing up" else [])
    else:
        check_only(desk, ids()[0] if act == "replacing up" else None)


def test_down_is_interrupted_while_memory_comes_back(begun: dict[str, Desk]) -> None:
    desk = begun["down"].copy()
    desk["spark2"].lingering_bytes = 20 << 30
    desk.on_sleep.append(ctrl_c)
    with pytest.raises(InterruptedByUser):
        run_down(desk)
    assert desk["spark2"].kept() == [ids()[0]], "what tells the memory before is kept until the proof"
    desk.recover()
    desk["spark2"].lingering_bytes = 0
    run_down(desk)
    check_only(desk, None)


def test_a_probe_of_a_killed_operator_is_ended(begun: dict[str, Desk]) -> None:
    """The operator died during the probe and during a download; both go on in their containers."""
    for act, expected in (("fresh up", ids()[1]), ("down", None)):
        desk = begun[act].copy()
        for name in ("cluster-try-toy", "cluster-download"):
            words = ("run", "--detach", "--name", name, "--label", "cluster.try=1", "--entrypoint", "sleep", IMAGE, "9")
            desk["spark2"].docker.answer(words)
        ACTS[act][1](desk)
        check_only(desk, expected)
