"""Which way did the traffic between ranks go: judged by the HCAs' own byte counters and NCCL's own lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cluster.spark.fact import Missing
from cluster.spark.links import Links

RDMA = re.compile(r"NET/IB\w* : Using|via NET/IB")
ENOUGH_BYTES = 64 << 10
"""A completion over N ranks moves at least this much; idle links carry a few hundred bytes a second."""


@dataclass(frozen=True, slots=True)
class Transport:
    """The verdict. `grown` is bytes sent and received by each host's facing HCAs during the completion."""

    verdict: Literal["rdma", "socket", "unknown"]
    why: str
    grown: Mapping[str, int]
    lines: tuple[str, ...] = ()


def grown_bytes(before: Links | Missing, after: Links | Missing, hcas: Sequence[str]) -> int | None:
    """Bytes the named HCAs moved between two looks; None when a counter could not be read."""
    if isinstance(before, Missing) or isinstance(after, Missing):
        return None
    first = {link.hca: link.moved_bytes for link in before.links}
    total = 0
    for link in after.links:
        if link.hca in hcas and link.hca in first:
            then, now = first[link.hca], link.moved_bytes
            if then is None or now is None:
                return None
            total += now - then
    return total


def judge_transport(grown: Mapping[str, int | None], lines: Mapping[str, Sequence[str]]) -> Transport:
    """RDMA is proven by every host's counters; NCCL's lines say why not, and decide where counters are silent."""
    known = {host: value for host, value in grown.items() if value is not None}
    every = [line for host_lines in lines.values() for line in host_lines]
    kept = tuple(dict.fromkeys(line.strip() for line in every))[:8]
    still = [host for host, value in known.items() if value < ENOUGH_BYTES]
    socket = next((line for line in every if "network Socket" in line or "NET/Socket" in line), "")
    if socket:
        return Transport("socket", socket.strip(), known, kept)
    if still:
        return Transport("socket", f"the HCAs' counters stood still on {', '.join(still)}", known, kept)
    silent = [host for host in grown if host not in known]
    if grown and not silent:
        return Transport("rdma", "the HCAs' own counters grew on every host", known, kept)
    if grown and all(any(RDMA.search(line) for line in lines.get(host, ())) for host in silent):
        return Transport("rdma", f"NCCL says so; the HCAs' counters cannot be read on {', '.join(silent)}", known, kept)
    return Transport("unknown", f"the HCAs' counters cannot be read on {', '.join(silent) or 'any host'}", known, kept)
