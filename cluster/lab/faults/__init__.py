"""Faults on purpose: `cluster lab break HOST FAULT`, undone by `cluster lab mend`."""

from __future__ import annotations

from cluster.lab.faults.docker import DOCKER_FAULTS
from cluster.lab.faults.fault import Fault
from cluster.lab.faults.figures import FIGURE_FAULTS
from cluster.lab.faults.login import LOGIN_FAULTS
from cluster.lab.faults.network import NETWORK_FAULTS
from cluster.lab.faults.power import POWER_FAULTS

FAULTS: dict[str, Fault] = {
    fault.name: fault for fault in (*NETWORK_FAULTS, *LOGIN_FAULTS, *DOCKER_FAULTS, *FIGURE_FAULTS, *POWER_FAULTS)
}
