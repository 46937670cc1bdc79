"""Checks and findings: each check is defined once, with its page; `--force` knows them all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.diagnosis import hang
from cluster.errors import UsageError
from cluster.spark.finding import Finding, Shared, checks_in, share
from cluster.spark.look import CHECKS, check_names

PACKAGE = Path(__file__).resolve().parents[2] / "cluster"
WATCHED = checks_in([hang])


def test_each_check_is_defined_once() -> None:
    """A second one of the same name would have a page of its own; a finding made without a check would have none."""
    files = {
        file: file.read_text()
        for room in ("spark", "diagnosis", "deploy", "cli")
        for file in (PACKAGE / room).glob("*.py")
    }
    defined = re.findall(r'^\w+ = Check\("([\w-]+)", "[\w#-]+"\)$', "\n".join(files.values()), re.MULTILINE)
    assert sorted(defined) == sorted([*CHECKS, *WATCHED])
    made = {file.name for file, text in files.items() if re.search(r"\bFinding\(\"?\w", text)}
    assert made == {"finding.py", "rules.py"}


def test_a_finding_has_its_runbook() -> None:
    assert hang.WEDGE.fault("", "it hangs").runbook == "it-hangs#wedged"
    assert CHECKS["memory"].warning("spark1", "full").as_dict()["runbook"] == "memory-is-full"


def test_the_same_on_several_hosts_is_said_once() -> None:
    def docker(host: str, why: str = "no daemon") -> Finding:
        return Finding("fault", "docker", host, "Docker cannot be used", why, f"on {host}: systemctl start docker")

    other = Finding("warning", "mtu", "a", "1500", "", "on a: ip link")
    first, second, third = share([docker("a"), other, docker("b"), docker("a"), docker("c", "refused")])
    assert (first.hosts, first.finding.host) == (("a", "b"), "")
    assert first.finding.remedy == "on each: systemctl start docker"
    assert second == Shared(Finding("warning", "mtu", "", "1500", "", "on a: ip link"), ("a",))
    assert (third.hosts, third.finding.remedy) == (("c",), "on c: systemctl start docker")
    assert share([]) == []


def test_force_takes_names_of_checks() -> None:
    assert check_names(["memory", "mtu", "mtu"]) == {"memory", "mtu"}
    assert check_names([]) == frozenset()
    with pytest.raises(UsageError, match="--force memroy") as raised:
        check_names(["mtu", "memroy"])
    assert raised.value.code == "unknown-check"
    assert all(name in raised.value.remedy for name in CHECKS)


@pytest.mark.parametrize("where", ["the checkout", "elsewhere"])
def test_the_path_that_is_printed_opens(where: str, tmp_path: Path) -> None:
    """That of an installed package: wire/test_wheel."""
    here = PACKAGE.parent if where == "the checkout" else tmp_path
    program = "from cluster.config.find import runbook_path; print(runbook_path('it-is-slow#mtu'))"
    env = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    said = subprocess.check_output([sys.executable, "-c", program], cwd=here, env=env, text=True)
    path, _, section = said.strip().partition(" ")
    assert (here / path).is_file()
    assert section == "#mtu"
    assert Path(path).is_absolute() == (where != "the checkout")
