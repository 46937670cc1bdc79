"""The rooms and who may import whom (docs/architecture.md). Reads the source; imports nothing of it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from loops import each

PACKAGE = Path(__file__).resolve().parents[2] / "cluster"
ROOMS = (
    "errors",
    "config",
    "argv",
    "spark",
    "hosts",
    "screen",
    "crash",
    "diagnosis",
    "deploy",
    "bench",
    "model",
    "probe",
    "cli",
)
"""From the bottom up: a room imports itself and what stands before it."""
THINK = ("config", "argv", "spark", "diagnosis")
ACTING = {"subprocess", "socket", "threading", "asyncio", "fabric", "paramiko"}
FORBIDDEN_NAMES = {"utils", "common", "helpers", "manager", "base"}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def room_of(path: Path) -> str:
    """The room a file belongs to: its folder in the package, or its own name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def read_imports(path: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, wherever in it; relative ones begin with a dot."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)


@cache
def imported(path: Path) -> tuple[str, ...]:
    """The same; each file is parsed once for all tests."""
    return tuple(read_imports(path))


def rooms_used(path: Path) -> set[str]:
    """Rooms that a file imports from."""
    dotted = (name.split(".") for name in imported(path))
    names = {parts[1] for parts in dotted if parts[0] == "cluster" and len(parts) > 1}
    return names - {"__version__"}


def of_room(*rooms: str) -> list[Path]:
    return [path for path in FILES if room_of(path) in rooms]


def show(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_every_file_is_in_a_known_room() -> None:
    assert {room_of(path) for path in FILES} <= {*ROOMS, "far", "lab", "__init__"}


@each("path", of_room(*ROOMS), ids=show)
def test_imports_go_downward(path: Path) -> None:
    room = room_of(path)
    below = set(ROOMS[: ROOMS.index(room) + 1])
    if path == PACKAGE / "cli" / "lab.py":
        below.add("lab")
    assert rooms_used(path) <= below
    assert not [name for name in imported(path) if name.startswith(".")], "relative imports hide the room"


@each("path", of_room(*THINK), ids=show)
def test_thinking_rooms_do_not_act(path: Path) -> None:
    assert not {name.split(".")[0] for name in imported(path)} & ACTING


def test_one_file_each_for_ssh_and_screen() -> None:
    for libraries, allowed in (({"fabric", "paramiko"}, "hosts/ssh.py"), ({"rich"}, "screen.py")):
        users = {show(path) for path in FILES if {name.split(".")[0] for name in imported(path)} & libraries}
        assert users <= {allowed}


def test_the_product_does_not_know_the_lab() -> None:
    """Only its own action and the table of commands speak of it."""
    allowed = {PACKAGE / "cli" / "lab.py", PACKAGE / "cli" / "main.py", PACKAGE / "cli" / "options.py"}
    word = re.compile(
        r"\b_?labs?\b|cluster\.lab|cluster-lab|lab-tiny|CLUSTER_LAB|simulated by|/opt/quick", re.IGNORECASE
    )
    for path in FILES:
        if room_of(path) != "lab" and path not in allowed:
            found = word.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{show(path)} says {found.group() if found else ''}"


def test_no_name_that_says_nothing() -> None:
    names = {part.removesuffix(".py") for path in FILES for part in path.relative_to(PACKAGE).parts}
    assert not names & FORBIDDEN_NAMES


def test_a_class_name_is_one_thing() -> None:
    names = [node.name for path in FILES for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_the_rules_can_fail(tmp_path: Path) -> None:
    """The reader sees imports inside functions and under TYPE_CHECKING."""
    file = tmp_path / "x.py"
    file.write_text("import os\ndef f():\n    from cluster.hosts import ssh\nif 0:\n    import cluster.deploy.up\n")
    assert rooms_used(file) == {"hosts", "deploy"}


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by their bare name, so the second of a pair cannot be collected."""
    names = Counter(path.name for path in PACKAGE.parent.glob("tests/*/*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
