"""Names and addresses of a lab: pure values, nothing runs here."""

from __future__ import annotations

from dataclasses import dataclass

PRODUCT_NAME = "NVIDIA DGX Spark (simulated by cluster lab)"
GPU_PRODUCT_NAME = "real GPU, simulated wire (cluster lab)"
USER = "spark"
MANAGEMENT_NETDEV = "enP7s7"
FABRIC_MTU = 9000
OUTSIDE = "outside.cluster-lab"
HUB_URL = f"http://{OUTSIDE}:8080"
REGISTRY_URL = f"http://{OUTSIDE}:5000"
MAX_HOSTS = 32
LAB_NUMBERS = range(10)


@dataclass(frozen=True, slots=True)
class Function:
    """One PCI function of the ConnectX-7: an HCA with its netdev; `subnet` is None when no cable is plugged in."""

    hca: str
    netdev: str
    subnet: str | None


PORTS = (
    Function("rocep1s0f0", "enp1s0f0np0", None),
    Function("roceP2p1s0f0", "enP2p1s0f0np0", None),
    Function("rocep1s0f1", "enp1s0f1np1", "192.168.100"),
    Function("roceP2p1s0f1", "enP2p1s0f1np1", "192.168.101"),
)
CABLED = tuple(port for port in PORTS if port.subnet)


@dataclass(frozen=True, slots=True)
class Spark:
    """One simulated host. `number` counts from 1, `lab` is the number of the lab on this machine (0 to 9), `memory_gib`
    its limit of memory (0: none, it has this machine's)."""

    number: int
    lab: int = 0
    memory_gib: float = 0

    @property
    def name(self) -> str:
        return f"spark{self.number}"

    @property
    def management(self) -> str:
        return management_of(self.lab, 10 + self.number)

    def fabric(self, port: Function) -> str:
        """Its address on a port; empty without a cable."""
        return f"{port.subnet}.{10 + self.number}" if port.subnet else ""

    def mac(self, wire: int) -> str:
        """A locally administered MAC address that stays the same over reboots; `wire` 0 is management, 1… PORTS."""
        return f"02:5a:{self.lab:02x}:{wire:02x}:00:{self.number:02x}"

    @property
    def cgroup(self) -> str:
        return f"/cluster-lab-{self.lab}/{self.name}"


def management_of(lab: int, number: int) -> str:
    """An address on a lab's management network: 1 is this machine, 2 the registry and hub, from 11 on the hosts."""
    return f"10.83.{77 + lab}.{number}"


def netdev_of(lab: int) -> str:
    return f"cllab{lab}"


def inventory_text(hosts: tuple[Spark, ...], key: str, known_hosts: str) -> str:
    rows = "".join(f"  {host.name}:\n    address: {host.management}\n" for host in hosts)
    names = ", ".join(host.name for host in hosts)
    return (
        "# Simulated Sparks, made by `cluster lab up`; gone with `cluster lab down`.\n"
        f"hosts:\n{rows}"
        f"groups:\n  all: [{names}]\n"
        f"defaults:\n  user: {USER}\n  port: 22\n  identity_file: {key}\n  known_hosts_file: {known_hosts}\n"
        "default_recipe: lab-tiny\n"
    )
