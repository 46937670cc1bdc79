"""Which netdev carries which HCA and whether it is up, from what people paste: `ibdev2netdev` and `rdma link`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster.spark.links import port_of

_IBDEV = re.compile(r"^\W*(?P<hca>[\w.-]+) port (?P<port>\d+) ==> (?P<netdev>[\w.-]+) \((?P<state>\w+)\)", re.MULTILINE)
_RDMA = re.compile(
    r"^\W*link (?P<hca>[\w.-]+)/(?P<port>\d+) state (?P<state>\w+)(?: physical_state \w+)?"
    r"(?: netdev (?P<netdev>[\w.-]+))?",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an HCA with its netdev (empty when it has none)."""

    hca: str
    netdev: str
    is_up: bool

    @property
    def twin_name(self) -> str:
        """Equal for the two PCI functions of one QSFP port."""
        return port_of(self.netdev)


def recognise(text: str) -> tuple[Port, ...] | None:
    """Every port that a text lists, None when it lists none."""
    ports = [Port(row["hca"], row["netdev"], row["state"] == "Up") for row in _IBDEV.finditer(text)]
    ports += [Port(row["hca"], row["netdev"] or "", row["state"] == "ACTIVE") for row in _RDMA.finditer(text)]
    return tuple(ports) or None
