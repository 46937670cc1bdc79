"""Measured bandwidth from the text of perftest (ib_write_bw …), nccl-tests and iperf3."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cluster.argv.question import Answer
from cluster.spark.fact import Missing
from cluster.spark.sections import last_words, plain, refuse

_PERFTEST = re.compile(r"BW average\[(?P<unit>Gb|MB|MiB)/sec\]")
_PERFTEST_ROW = re.compile(
    r"^[ \t]*(?P<size>\d+)[ \t]+\d+[ \t]+[\d.]+[ \t]+(?P<average>\d+(?:\.\d+)?)[ \t]+[\d.]+[ \t]*$", re.MULTILINE
)
_NCCL_ROW = re.compile(
    r"^[ \t]*(?P<size>\d+)[ \t]+\d+[ \t]+\w+[ \t]+\w+[ \t]+-?\d+[ \t]+[\d.]+[ \t]+[\d.]+"
    r"[ \t]+(?P<busbw>[\d.]+)[ \t]+(?:\d+|N/A)",
    re.MULTILINE,
)
_NCCL_AVERAGE = re.compile(r"Avg bus bandwidth[ \t]*:[ \t]*(?P<busbw>[\d.]+)")
_NCCL_HOST = re.compile(r"^#[ \t]+Rank[ \t]+\d+ .*\bon[ \t]+(?P<host>[\w.-]+)[ \t]+device", re.MULTILINE)
_NCCL_BAD = re.compile(r"Out of bounds values[ \t]*:[ \t]*(?P<count>\d+)[ \t]+FAILED")
_IPERF = re.compile(r" (?P<gbits>\d{1,5}(?:\.\d+)?) Gbits/sec(?:[ \t]+\d+)?[ \t]+(?:receiver|sender)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The best that a test reached, in Gb/s on the wire. `size`: bytes of the largest message, 0 when not told."""

    tool: Literal["perftest", "nccl-tests", "iperf3"]
    gbps: float
    size: int = 0
    hosts: int = 0
    wrong: int = 0


def parse(answer: Answer) -> Bandwidth | Missing:
    """What the sending end of `ib_write_bw` measured, else its own words why not."""
    found = _perftest(plain(answer.text))
    return found or refuse(answer, "ib_write_bw") or Missing(last_words(answer) or "ib_write_bw gave no result")


def recognise(text: str) -> Bandwidth | None:
    """The result of the first kind of test that a text holds, None when it holds none."""
    return _perftest(text) or _nccl_tests(text) or _iperf(text)


def _perftest(text: str) -> Bandwidth | None:
    header = _PERFTEST.search(text)
    rows = list(_PERFTEST_ROW.finditer(text)) if header else []
    if not header or not rows:
        return None
    factor = 1.0 if header["unit"] == "Gb" else 8 * 1.048576 / 1000
    best = max(float(row["average"]) for row in rows)
    return Bandwidth("perftest", best * factor, max(int(row["size"]) for row in rows))


def _nccl_tests(text: str) -> Bandwidth | None:
    rows = list(_NCCL_ROW.finditer(text))
    average = _NCCL_AVERAGE.search(text)
    hosts = len({row["host"] for row in _NCCL_HOST.finditer(text)})
    bad = _NCCL_BAD.search(text)
    wrong = int(bad["count"]) if bad else 0
    if rows:
        largest = max(rows, key=lambda row: int(row["size"]))
        return Bandwidth("nccl-tests", float(largest["busbw"]) * 8, int(largest["size"]), hosts, wrong)
    return Bandwidth("nccl-tests", float(average["busbw"]) * 8, 0, hosts, wrong) if average else None


def _iperf(text: str) -> Bandwidth | None:
    found = [float(row["gbits"]) for row in _IPERF.finditer(text)]
    return Bandwidth("iperf3", max(found)) if found else None
