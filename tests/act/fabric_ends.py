"""The ends of a fabric test on a simulated machine: far/flood, and perftest where it is installed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fake_host import FakeProcess
from fake_load import FakeLoad

from cluster.argv.far import source
from cluster.argv.question import Answer

if TYPE_CHECKING:
    from spark import Machine, Port

STARS = "*" * 36
REPORT = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      361208           0.00               {gbps:.2f}		     0.180604
"""


class FabricEnds:
    """A part of Machine. Both ends must be given their own HCA, GID and address, and the other's address."""

    def port_at(self: Machine, address: str) -> Port:
        return next(port for port in self.ports if port.address == address)

    def started(self: Machine, argv: tuple[str, ...], stdin: bytes) -> FakeProcess:
        if source("flood") in stdin:
            return self.flood(json.loads(argv[-1]), stdin.rpartition(source("flood"))[2])
        if source("load") in stdin:
            return FakeLoad(self, argv, stdin)
        if "ib_write_bw" in argv:
            self.check_own(argv)
            if "listen" in self.broken:
                return FakeProcess(self.broken["listen"].splitlines(), 1)
            return FakeProcess(["", STARS, "* Waiting for client to connect... *", STARS])
        return FakeProcess()

    def flood(self: Machine, given: dict[str, Any], token: bytes) -> FakeProcess:
        assert len(token.strip()) == 32
        if given["role"] in self.broken:
            return FakeProcess([self.broken[given["role"]]], 0)
        if given["role"] == "receive":
            assert self.port_at(given["address"])
            return FakeProcess(['{"port": 40123}'])
        assert given["port"] == 40123
        count = self.port_at(given["own"]).tcp_gbps * 1e9 / 8 * given["seconds"]
        line = {"bytes": int(count), "seconds": float(given["seconds"]), "cpu": self.busiest_core}
        return FakeProcess([json.dumps(line)], 0)

    def check_own(self: Machine, words: tuple[str, ...] | list[str]) -> Port:
        """The port that ib_write_bw is told to use, by HCA and GID index."""
        hca, index = (words[words.index(name) + 1] for name in ("--ib-dev", "--gid-index"))
        port = next(port for port in self.ports if port.hca == hca)
        assert port.gid_index == int(index)
        return port

    def run_ib_write_bw(self: Machine, words: list[str]) -> Answer:
        if not self.perftest:
            return Answer(127)
        if words == ["--version"]:
            return Answer(1, b"Version: 24.01\n")
        if "call" in self.broken:
            return Answer(1, err=self.broken["call"].encode())
        port = self.check_own(words)
        assert any(words[-1] == one.address for machine in self.desk if machine is not self for one in machine.ports)
        return Answer(0, REPORT.format(gbps=port.rdma_gbps).encode())
