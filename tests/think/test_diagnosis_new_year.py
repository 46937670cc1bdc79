"""The order of causes over New Year, in texts that tell the year and in texts that do not."""

from __future__ import annotations

import pytest

from cluster.diagnosis.explain import explain
from cluster.diagnosis.scan import Source

FIRST = "ValueError: Free memory on device cuda:0 (3/121 GiB) on startup is less than desired"
LATER = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
XID = "kernel: NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."
WELL = "INFO:     Application startup complete."
TIMES = {
    "with the year": ("2026-12-31T23:59:50Z", "2027-01-01T00:00:10Z"),
    "without": ("ERROR 12-31 23:59:50", "ERROR 01-01 00:00:10"),
    "the later one with the year": ("ERROR 12-31 23:59:50", "2027-01-01T00:00:10Z"),
    "in summer": ("ERROR 06-30 23:59:50", "ERROR 07-01 00:00:10"),
    "years apart": ("2024-07-01T00:00:00Z", "2026-02-01T00:00:00Z"),
}


def source(name: str, time: str, text: str) -> Source:
    return Source.of_text(f"{name}.txt", f"{time} {text}\n", name)


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("turned", [False, True])
def test_the_earlier_cause_is_the_root(turned: bool, times: tuple[str, str]) -> None:
    sources = [source("spark1", times[0], FIRST), source("spark2", times[1], LATER)]
    root = explain(sources[::-1] if turned else sources).root
    assert root
    assert root.finding.host == "spark1"


@pytest.mark.parametrize(("happened", "well", "root"), [(0, 1, None), (1, 0, "gpu-xid")])
def test_what_happened_before_the_server_was_well_is_past(happened: int, well: int, root: str | None) -> None:
    times = TIMES["with the year"]
    beside = Source("spark2-kernel.txt", (f"{times[happened]} spark2 {XID}\n".encode(),), "spark2", True)
    found = explain([beside, source("spark1", times[well], WELL)]).root
    assert (found.id if found else None) == root


def test_ten_minutes_over_new_year_are_ten_minutes() -> None:
    text = (
        "2026-12-31T23:55:00Z INFO 12-31 23:55:00 [api_server.py:1] vLLM API server version 0.19.0\n"
        "2027-01-01T00:05:05Z RuntimeError: Engine core initialization failed. See root cause above. Failed core"
        " proc(s): {}\n"
    )
    moved = text.replace("2026-12-31T23", "2026-06-10T11").replace("2027-01-01T00", "2026-06-10T12")
    assert [one.id for one in explain([Source.of_text("a", text)]).findings] == [
        one.id for one in explain([Source.of_text("a", moved)]).findings
    ]
