"""What the checks do to `cluster up`: faults stop it before anything changes, all else is said and goes on."""

from __future__ import annotations

import pytest
from machine import Desk
from spark import SMI
from typed import UP, Typed

CAPPED = SMI.replace("12.34, 2418, 44, 0, 0x0000000000000001", "16.40, 640, 47, 96, 0x0000000000000004")
WEDGED = SMI.replace("12.34, 2418, 44, 0, 0x0000000000000001", "20.30, 2405, 51, 95, 0x0000000000000000")
UNREADABLE = {"missing": "Permission denied", "kind": "refused"}


def test_a_capped_gpu_is_refused_unless_it_is_forced(cluster: Typed, desk: Desk) -> None:
    desk["spark2"].smi = (0, CAPPED)
    before = desk.state()
    ran = cluster(*UP)
    assert ran.code == 4
    assert "96 % busy, 16.4 W, 640 MHz, 47 °C, power cap" in ran.err
    assert "spark2, check `power-cap`" in ran.err
    assert desk.state() == before
    ran = cluster(*UP, "--force", "power-cap")
    assert ran.code == 0
    assert "fault (forced): spark2: the GPU is busy at low clocks" in ran.err


def test_a_wedged_gpu_is_a_warning_since_a_restart_cures_it(cluster: Typed, desk: Desk) -> None:
    desk["spark2"].smi = (0, WEDGED)
    ran = cluster(*UP)
    assert ran.code == 0
    assert "warning: spark2: the GPU is busy at idle power with full clocks" in ran.err


@pytest.mark.parametrize("section", ["clock", "links", "gpu"])
def test_what_could_not_be_read_neither_passes_nor_stops(section: str, cluster: Typed, desk: Desk) -> None:
    desk["spark2"].missing[section] = UNREADABLE
    if section == "gpu":
        desk["spark2"].smi = (3, "Unable to determine the device handle")
    ran = cluster(*UP, "--dry-run", *(["--allow-socket"] if section == "links" else []))
    assert ran.code == 0, ran.all
    assert "unknown: spark2: " in ran.err
