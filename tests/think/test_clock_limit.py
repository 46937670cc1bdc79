"""The limit of GPU clocks: the scripts on this machine beside false sudo and nvidia-smi, what is noted, the checks."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from facts_tools import ask, put, put_program, run_far
from plan_tools import identity, rank_container, seen, wanted

from cluster.argv.clocks import BOOT_ID, NOTE, limit_clocks, reset_clocks
from cluster.config.inventory import InventoryFile, read_inventory, resolve_hosts
from cluster.errors import UsageError
from cluster.far import kept
from cluster.spark.clock_limit import (
    ClockLimit,
    check_clock_limit,
    check_limit_held,
    exceeds,
    in_words,
    of_others,
    parse,
    to_set,
)
from cluster.spark.fact import Missing
from cluster.spark.gpu import Gpu

SMI = """#!/bin/sh
echo "$@" >>"$HOME/asked"
cat "$HOME/data/clocks.json" >>"$HOME/noted" 2>&1
case $1 in
  -lgc) echo "GPU clocks set to \\"(gpuClkMin 0, gpuClkMax ${2#*,})\\" for GPU 0000000F:01:00.0" ;;
esac
echo All done.
"""
UNSUPPORTED = """#!/bin/sh
echo "Setting locked GPU clocks is not supported for GPU 0000000F:01:00.0."
echo "Treating as warning and moving on."
echo "All done."
"""
SUDO = """#!/bin/sh
[ "$1" = -n ] && shift
exec "$@"
"""
NO_SUDO = """#!/bin/sh
echo "sudo: a password is required" >&2
exit 1
"""
BOOT = Path(BOOT_ID).read_text().strip()


def machine(tmp_path: Path, smi: str = SMI, sudo: str = SUDO) -> dict[str, str]:
    put_program(tmp_path, "sudo", sudo)
    return put_program(tmp_path, "nvidia-smi", smi)


def note(tmp_path: Path) -> dict[str, Any] | None:
    path = tmp_path / "data" / NOTE
    return json.loads(path.read_text()) if path.exists() else None


def test_a_limit_is_noted_before_it_is_set_and_put_back(tmp_path: Path) -> None:
    env, data = machine(tmp_path), f"{tmp_path}/data"
    assert ask(limit_clocks(data, 2000), env).exit == 0
    assert note(tmp_path) == {"sm_max_mhz": 2000, "boot": BOOT}
    assert (tmp_path / "asked").read_text() == "-lgc 0,2000\n"
    assert json.loads((tmp_path / "noted").read_text())["sm_max_mhz"] == 2000, "written first"
    for _ in range(2):
        assert ask(reset_clocks(data), env).exit == 0
    assert note(tmp_path) is None
    assert (tmp_path / "asked").read_text() == "-lgc 0,2000\n-rgc\n"
    assert os.listdir(data) == []


@pytest.mark.parametrize(("smi", "sudo"), [(UNSUPPORTED, SUDO), (SMI, NO_SUDO)])
@pytest.mark.parametrize("before", [None, {"sm_max_mhz": 2200, "boot": BOOT}])
def test_what_cannot_be_set_leaves_the_note_as_it_was(
    tmp_path: Path, smi: str, sudo: str, before: dict[str, Any] | None
) -> None:
    env = machine(tmp_path, smi, sudo)
    put(tmp_path, {"data/clocks.json": json.dumps(before)} if before else {})
    answer = ask(limit_clocks(f"{tmp_path}/data", 2000), env)
    assert answer.exit == 1
    assert "not supported" in answer.error_text or "a password is required" in answer.error_text
    assert note(tmp_path) == before


def test_after_a_reboot_only_the_note_goes(tmp_path: Path) -> None:
    """The driver has forgotten the limit, and what is set now is somebody else's."""
    env = machine(tmp_path)
    put(tmp_path, {"data/clocks.json": json.dumps({"sm_max_mhz": 2000, "boot": "another"})})
    assert parse(run_far("kept", {"sections": ["clock_limit"], "data_dir": f"{tmp_path}/data"})) == ClockLimit(
        2000, current=False
    )
    assert ask(reset_clocks(f"{tmp_path}/data"), env).exit == 0
    assert note(tmp_path) is None
    assert not (tmp_path / "asked").exists()


def test_a_limit_that_cannot_be_put_back_stays_noted(tmp_path: Path) -> None:
    put(tmp_path, {"data/clocks.json": json.dumps({"sm_max_mhz": 2000, "boot": BOOT})})
    assert ask(reset_clocks(f"{tmp_path}/data"), machine(tmp_path, sudo=NO_SUDO)).exit == 1
    assert note(tmp_path)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("ExecStart=/usr/bin/nvidia-smi -lgc 300,2400", True),
        ("@reboot root nvidia-smi -i 0 --lock-gpu-clocks=300,2400", True),
        ("ExecStart=/usr/bin/nvidia-smi -rgc", False),
        ("ExecStart=/usr/bin/nvidia-smi -pm 1\nExecStart=/usr/bin/other -lgc", False),
    ],
)
def test_what_limits_clocks_at_each_start(text: str, limits: bool) -> None:
    assert bool(kept.LIMITS.search(text)) == limits


SETTING = Gpu("NVIDIA GB10", "580.95", None, None, 40.0, 1800, 50, 90, ("application clocks",))
NONE, OURS, OLD = ClockLimit(None, False), ClockLimit(2000, True), ClockLimit(2000, False)
THEIRS = ClockLimit(None, False, ("/etc/cron.d/gpu",))


def check(limit: Any, *, asked: int = 2000, check: Any = check_clock_limit, **facts: Any) -> list[str]:
    of = wanted()
    of = replace(of, hosts=tuple(replace(host, sm_max_mhz=asked) for host in of.hosts))
    return [one.level for one in check(of, seen(clock_limit=limit, **facts))]


def test_checks() -> None:
    without = {"identity": identity(1, sudo=False)}
    for limit in (NONE, OURS, OLD):
        assert check(limit) == []
        assert check(limit, **without) == ["fault"]
    assert check(NONE, asked=0, **without) == []
    assert check(OURS, asked=0, **without) == ["fault"], "it could not be put back"
    assert check(THEIRS) == check(NONE, gpu=(SETTING,)) == ["warning"]
    assert check(THEIRS, asked=0) == []
    assert check(OURS, gpu=(SETTING,)) == [], "it is the one that cluster set"
    assert check(Missing("no")) == ["unknown"]


def test_checks_of_doctor() -> None:
    runs = {"containers": (rank_container(1, wanted()),)}
    assert check(OURS, check=check_limit_held, **runs) == []
    assert check(OLD, check=check_limit_held, **runs) == check(NONE, check=check_limit_held, **runs) == ["warning"]
    assert check(THEIRS, check=check_limit_held, **runs) == []
    assert check(OURS, check=check_limit_held) == ["note"], "no rank runs"


def test_what_is_set_and_what_is_named() -> None:
    host = replace(wanted().hosts[0], sm_max_mhz=2000)
    assert [to_set(host, seen(clock_limit=limit)) for limit in (NONE, OURS, OLD, THEIRS)] == [2000, 2000, 2000, 0]
    assert to_set(host, seen(clock_limit=NONE, identity=identity(1, sudo=False))) == 0
    assert in_words(seen(clock_limit=OURS)) == "at most 2000 MHz"
    assert in_words(seen(clock_limit=THEIRS)) == of_others(seen(clock_limit=THEIRS)) == "/etc/cron.d/gpu"
    assert in_words(seen(clock_limit=OLD)) == ""
    assert exceeds((replace(SETTING, sm_clock_mhz=2418),), 2000) == 2418
    assert exceeds((replace(SETTING, sm_clock_mhz=2010),), 2000) is None
    assert exceeds((replace(SETTING, sm_clock_mhz=None),), 2000) is None


def test_inventory(tmp_path: Path) -> None:
    path = tmp_path / "i.yaml"
    path.write_text(
        "defaults: {clocks: {sm_max_mhz: 2200}}\n"
        "hosts:\n  a: {address: a}\n  b: {address: b, clocks: {sm_max_mhz: 0}}\n"
        "  c: {address: c, clocks: {sm_max_mhz: 1800}}\n"
    )
    file = InventoryFile(read_inventory(path), path)
    hosts = resolve_hosts(file, ["a", "b", "c", "me@10.0.0.1"], lambda name: False)
    assert [host.sm_max_mhz for host in hosts] == [2200, 0, 1800, 2200]
    for wrong in ("900", "99999", "fast", "[1]"):
        path.write_text(f"hosts: {{a: {{address: a, clocks: {{sm_max_mhz: {wrong}}}}}}}\n")
        with pytest.raises(UsageError, match=r"clocks\.sm_max_mhz"):
            read_inventory(path)
