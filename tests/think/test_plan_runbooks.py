"""The one list of checks: every name that code gives a finding is in it, and nothing else."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import UsageError
from cluster.spark.finding import RUNBOOKS, WATCHED, Finding, check_names

PACKAGE = Path(__file__).resolve().parents[2] / "cluster"
ROOMS = ("spark", "hosts", "deploy", "bench", "cli")
NAME_AT = {"Finding": 1, "differ": 1, "unknown": 0}
"""Which argument of a call is the check's name."""


def names_in(text: str) -> Iterator[str]:
    """The names of checks that a source file gives its findings; a name that is no literal is left out."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAME_AT:
            at = NAME_AT[node.func.id]
            name = node.args[at] if at < len(node.args) else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def test_the_list_is_what_code_names() -> None:
    files = [file for room in ROOMS for file in (PACKAGE / room).rglob("*.py")]
    used = {name for file in files for name in names_in(file.read_text())}
    assert used == set(RUNBOOKS)


def test_what_is_watched_is_what_code_names() -> None:
    watched = (PACKAGE / "diagnosis" / "hang.py").read_text()
    assert set(names_in(watched)) == set(WATCHED)
    assert not set(WATCHED) & set(RUNBOOKS), "--force knows no finding of the watch"


def test_a_finding_has_its_runbook() -> None:
    assert Finding("fault", "wedge", "", "it hangs").runbook == WATCHED["wedge"]
    assert Finding("fault", "memory", "spark1", "full").runbook == RUNBOOKS["memory"]
    assert Finding("fault", "memory", "spark1", "full", runbook="it-hangs").runbook == "it-hangs"
    assert Finding("fault", "of-a-rule", "spark1", "x").runbook == ""
    assert Finding("fault", "memory", "spark1", "full").as_dict()["runbook"] == RUNBOOKS["memory"]


def test_force_takes_names_of_checks() -> None:
    assert check_names(["memory", "mtu", "mtu"]) == {"memory", "mtu"}
    assert check_names([]) == frozenset()
    with pytest.raises(UsageError, match="--force memroy: there is no check of that name") as raised:
        check_names(["mtu", "memroy"])
    assert raised.value.remedy.startswith("nearest: memory; all: platform, sudo")
    with pytest.raises(UsageError) as raised:
        check_names(["x"])
    assert raised.value.remedy.startswith("platform, sudo")


def test_the_page_about_checks_has_them_all() -> None:
    page = (PACKAGE.parent / "docs" / "checks.md").read_text()
    assert re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE) == list(RUNBOOKS)


def test_the_reader_of_source_sees_names() -> None:
    text = (
        'def f():\n    yield Finding("fault", "a", h, "w")\n    yield unknown("b", h, m, "w")\n    Finding(l, name)\n'
    )
    assert list(names_in(text)) == ["a", "b"]


def installed(place: Path) -> Path:
    """The package as the wheel lays it out, in a directory of its own."""
    root = PACKAGE.parent
    shutil.copytree(PACKAGE, place / "cluster", ignore=shutil.ignore_patterns("__pycache__", "lab"))
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for source, target in wheel["force-include"].items():
        (place / target).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (root / source).is_dir() else shutil.copyfile
        copy(root / source, place / target)
    return place


@pytest.mark.parametrize("where", ["the checkout", "elsewhere", "installed"])
def test_the_path_that_is_printed_opens(where: str, tmp_path: Path) -> None:
    root = installed(tmp_path / "site") if where == "installed" else PACKAGE.parent
    here = root if where == "the checkout" else tmp_path
    program = "from cluster.cli.findings import runbook_path; print(runbook_path('it-is-slow#mtu'))"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=here,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    path, _, section = ran.stdout.strip().partition(" ")
    assert (here / path).is_file()
    assert section == "#mtu"
    assert Path(path).is_absolute() == (where != "the checkout")
