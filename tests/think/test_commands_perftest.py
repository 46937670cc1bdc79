"""Golden words for ib_write_bw."""

from __future__ import annotations

from cluster.argv.perftest import VERSION, calling, ib_write_bw, listening
from cluster.argv.ports import PORTS, ports_used

WORDS = (
    "ib_write_bw",
    "--ib-dev",
    "roceP2p1s0f1",
    "--gid-index",
    "5",
    "--port",
    "27130",
    "--duration",
    "2",
    "--report_gbits",
    "--CPU-freq",
)


def test_golden_words() -> None:
    words = ib_write_bw("roceP2p1s0f1", 5, port=27130, seconds=2)
    assert words == WORDS
    assert listening(words, 12) == ("timeout", "--foreground", "-k", "1", "12", "stdbuf", "-oL", *WORDS)
    assert calling(words, "192.168.100.12", 12).argv == (*WORDS, "192.168.100.12")
    assert calling(words, "192.168.100.12", 12).timeout_s == 12
    assert VERSION.argv == ("ib_write_bw", "--version")


def test_its_ports_are_nobody_elses() -> None:
    own = range(PORTS.perftest_first, PORTS.perftest_first + 8)
    used = [use for rank in (0, 1) for use in ports_used(backend="ray", size=2, rank=rank, api_port=8000)]
    assert not [use for use in used if any(use.first <= port <= use.last for port in own)]
