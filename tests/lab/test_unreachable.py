"""The management cable of one host is out for longer than its lock lasts while the engine loads: it ends ready."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from hosts_now import DATA, assert_serves
from own_lab import Lab
from person import MP, Person, quick
from waiting import eventually

OUT_S = 40
"""More than the 30 s after which a host gives up the lock of a silent owner."""


def lock_since(lab: Lab) -> float:
    """When the lock of spark2 was taken."""
    return float(json.loads(lab.tell("spark2", f"cat {DATA}/lock"))["since"])


@pytest.mark.campaign
def test_a_start_outlasts_an_outage(lab: Lab, person: Person, broken: Callable[[str, str], None]) -> None:
    run = person.start("up", *MP, *quick(ready_after_s=OUT_S + 20))
    run.await_said("waiting: the engine")
    began = lock_since(lab)
    broken("spark2", "unreachable")
    time.sleep(OUT_S)
    lab.must("mend")
    eventually(lambda: lock_since(lab) > began + 30, 20, "the lock of spark2 is taken again")
    ran = run.ended()
    assert ran.code == 0, ran
    assert "; spark2 unreachable for " in ran.err, ran
    assert_serves(lab)
