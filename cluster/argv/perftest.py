"""Words for perftest's `ib_write_bw`, which measures RDMA between two HCAs. The same options are given to both ends."""

from __future__ import annotations

from cluster.argv.question import Question

VERSION = Question(("ib_write_bw", "--version"))
"""Whether it is there; it exits 1 also when it answers."""


def ib_write_bw(hca: str, gid_index: int, *, port: int, seconds: int) -> tuple[str, ...]:
    """One end of a test. `gid_index` is that of the RoCE v2 GID of this end's own address; every host has its own.

    `port` is where the two ends agree on the test by TCP. A test of fixed `seconds` has no peak, only an average.
    """
    return (
        "ib_write_bw",
        "--ib-dev",
        hca,
        "--gid-index",
        str(gid_index),
        "--port",
        str(port),
        "--duration",
        str(seconds),
        "--report_gbits",
        "--CPU-freq",
    )


def listening(words: tuple[str, ...], deadline_s: int) -> tuple[str, ...]:
    """The end that waits for the other, no longer than that; its output comes by line, so that one sees it wait."""
    return ("timeout", "--foreground", "-k", "1", str(deadline_s), "stdbuf", "-oL", *words)


def calling(words: tuple[str, ...], peer: str, deadline_s: int) -> Question:
    """The end that sends. `peer` is the other end's address on the same link."""
    return Question((*words, peer), timeout_s=deadline_s)
