"""The lab's cables: one switch (a network namespace held by `inside/daemon.py`), a management bridge, a fabric.

Everything hangs on namespaces, so that killing the daemon and the hosts leaves no netdev behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cluster.errors import ClusterError
from cluster.lab.engine import lab_files
from cluster.lab.place import Place
from cluster.lab.program import children_of, processes_with, run, words_of
from cluster.lab.shape import (
    CABLED,
    FABRIC_MTU,
    LAB_NUMBERS,
    MANAGEMENT_NETDEV,
    PORTS,
    Port,
    Spark,
    gateway_of,
    netdev_of,
    outside_of,
)

DAEMON = "inside/daemon.py"
NETWORK = Path("/sys/class/net")


def daemon_pids(place: Place) -> list[int]:
    """The processes that hold a switch of this lab, whichever installation of cluster started them."""
    return [pid for pid in processes_with([str(place.root)]) if any(word.endswith(DAEMON) for word in words_of(pid))]


def switch_of(place: Place, number: int) -> int | None:
    """The daemon of a whole switch: one whose last step, this machine's own address, was done."""
    try:
        whole = (NETWORK / netdev_of(number) / "operstate").read_text().strip() == "up"
    except OSError:
        whole = False
    return next(iter(daemon_pids(place)), None) if whole else None


def free_number() -> int:
    """The first lab number whose netdev is not on this machine. Raises ClusterError when ten labs are up."""
    for number in LAB_NUMBERS:
        if not (NETWORK / netdev_of(number)).exists():
            return number
    raise ClusterError(f"{len(LAB_NUMBERS)} labs are up on this machine", remedy="take one down")


def make_switch(place: Place, number: int, *, images: Path, model: Path) -> int:
    """Start the daemon in a network namespace of its own and plug this machine in; the daemon's process id.

    `images` and `model` are what the lab's registry and hub give out.
    """
    log = place.root / "daemon.log"
    with log.open("ab") as sink:
        alone = ["unshare", "--net", sys.executable, "-I", "-S", str(lab_files() / DAEMON)]
        words = [*alone, str(images / "registry"), str(model), str(place.root)]
        daemon = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True)
    _await_namespace(daemon.pid)
    rows = ["link set lo up", "link add mgmt type bridge", "link set mgmt up"]
    rows.append(f"addr add {outside_of(number)}/24 dev mgmt")
    for index, port in enumerate(PORTS):
        if port in CABLED:
            rows += [f"link add fabric{index} mtu {FABRIC_MTU} type bridge", f"link set fabric{index} up"]
    rows.append(f"link add machine type veth peer name {netdev_of(number)} netns {os.getpid()}")
    rows.append("link set machine master mgmt up")
    _ip(daemon.pid, rows)
    own = netdev_of(number)
    run(["ip", "-batch", "-"], stdin=f"addr add {gateway_of(number)}/24 dev {own}\nlink set {own} up\n")
    return daemon.pid


def plug_in(switch: int, spark: Spark, init: int) -> None:
    """Give a host its netdevs and addresses. Port 0 has no cable: its netdevs exist and are down."""
    wires = [f"link add {_end(0, spark)} type veth peer name {MANAGEMENT_NETDEV} address {spark.mac(0)} netns {init}"]
    wires.append(f"link set {_end(0, spark)} master mgmt up")
    inside = ["link set lo up", f"addr add {spark.management}/24 dev {MANAGEMENT_NETDEV}"]
    inside.append(f"link set {MANAGEMENT_NETDEV} up")
    for index, port in enumerate(PORTS):
        end = _end(index + 1, spark)
        peer = f"peer name {port.netdev} address {spark.mac(index + 1)} mtu {FABRIC_MTU} netns {init}"
        wires.append(f"link add {end} mtu {FABRIC_MTU} type veth {peer}")
        if port in CABLED:
            wires.append(f"link set {end} master fabric{index} up")
            inside.append(f"addr add {spark.fabric(port)}/24 dev {port.netdev}")
            inside.append(f"link set {port.netdev} up")
    _ip(switch, wires)
    _ip(init, inside)


def cut(switch: int, spark: Spark, ports: Sequence[Port], *, plugged: bool) -> None:
    """Pull a host's cables out at the switch, or plug them in again."""
    state = "up" if plugged else "down"
    _ip(switch, [f"link set {_end(PORTS.index(port) + 1, spark)} {state}" for port in ports])


def cut_management(switch: int, spark: Spark, *, plugged: bool) -> None:
    """The same for the management cable."""
    _ip(switch, [f"link set {_end(0, spark)} {'up' if plugged else 'down'}"])


def recable(switch: int, spark: Spark, init: int, *, old: Sequence[Port], new: Sequence[Port]) -> None:
    """Move a host's fabric from one QSFP port to the other, addresses included."""
    wires, inside = [], []
    for was, now, cabled in zip(old, new, CABLED, strict=True):
        wires.append(f"link set {_end(PORTS.index(was) + 1, spark)} down")
        wires.append(f"link set {_end(PORTS.index(now) + 1, spark)} master fabric{PORTS.index(cabled)} up")
        inside += [f"addr flush dev {was.netdev}", f"link set {was.netdev} down", f"link set {now.netdev} up"]
        inside.append(f"addr replace {spark.fabric(cabled)}/24 dev {now.netdev}")
    _ip(switch, wires)
    _ip(init, inside)


def ip_inside(init: int, rows: list[str]) -> None:
    """Lines of `ip -batch` in a host's own network."""
    _ip(init, rows)


def await_unplugged(number: int, timeout_s: float = 10) -> None:
    """Wait until the kernel has taken this machine's end of the switch away."""
    until = time.monotonic() + timeout_s
    while (NETWORK / netdev_of(number)).exists():
        if time.monotonic() > until:
            raise ClusterError(f"{netdev_of(number)} is still there", remedy=f"ip link delete {netdev_of(number)}")
        time.sleep(0.05)


def _end(wire: int, spark: Spark) -> str:
    """Name of a cable's end at the switch."""
    return f"h{spark.number}w{wire}"


def _ip(pid: int, rows: list[str]) -> None:
    run(["nsenter", "--target", str(pid), "--net", "ip", "-batch", "-"], stdin="\n".join(rows) + "\n")


def _await_namespace(pid: int, timeout_s: float = 5) -> None:
    """Wait until `unshare` has made the namespace and become the daemon."""
    until = time.monotonic() + timeout_s
    own = os.readlink("/proc/self/ns/net")
    while time.monotonic() < until:
        try:
            if os.readlink(f"/proc/{pid}/ns/net") != own:
                return
        except OSError:
            break
        time.sleep(0.01)
    raise ClusterError("the lab's switch did not start", where=f"process {pid}, children {children_of(pid)}")
