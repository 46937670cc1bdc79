"""The lab's cables: one switch (a network namespace held by `inside/daemon.py`), a management bridge, a fabric.

Everything belongs to namespaces, so that killing the daemon and the hosts leaves no netdev behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.errors import ClusterError
from cluster.lab.engine import lab_files
from cluster.lab.place import Place
from cluster.lab.program import await_that, processes_with, run, words_of
from cluster.lab.shape import (
    CABLED,
    FABRIC_MTU,
    LAB_NUMBERS,
    MANAGEMENT_NETDEV,
    PORTS,
    Function,
    Spark,
    management_of,
    netdev_of,
)

DAEMON = "inside/daemon.py"
NETWORK = Path("/sys/class/net")


def daemon_pids(place: Place) -> list[int]:
    """The processes that hold a switch of this lab, whichever installation of cluster started them."""
    return [pid for pid in processes_with([str(place.root)]) if any(word.endswith(DAEMON) for word in words_of(pid))]


def switch_of(place: Place, number: int) -> int | None:
    """The daemon of a complete switch: one whose last step, this machine's own address, was done."""
    return next(iter(daemon_pids(place)), None) if _is_plugged_in(number) else None


def _is_plugged_in(number: int) -> bool:
    """Whether this machine's end of the switch is up."""
    state = NETWORK / netdev_of(number) / "operstate"
    return state.exists() and state.read_text().strip() == "up"


def ip_in(pid: int, rows: list[str]) -> None:
    """Run lines of `ip -batch` in a process's network. Raises ClusterError at the first that fails."""
    run(["nsenter", "--target", str(pid), "--net", "ip", "-batch", "-"], stdin="\n".join(rows) + "\n")


def end_switches(place: Place, number: int) -> None:
    """Kill the daemons of this lab, and wait until the kernel has removed their netdevs."""
    for switch in daemon_pids(place):
        with contextlib.suppress(ProcessLookupError):
            os.kill(switch, signal.SIGKILL)
        await_that(lambda: not (NETWORK / netdev_of(number)).exists(), f"{netdev_of(number)} is still there")


def new_switch(place: Place, *, images: Path, models: Path) -> int:
    """Make a switch with the first number whose netdev is not on this machine; the number.

    Another lab may take it first, then the next is tried. Raises ClusterError when ten labs are up.
    """
    while True:
        number = next((one for one in LAB_NUMBERS if not (NETWORK / netdev_of(one)).exists()), None)
        if number is None:
            what = f"{len(LAB_NUMBERS)} labs are up on this machine"
            raise ClusterError(what, code="lab-busy", remedy="take one down")
        try:
            make_switch(place, number, images=images, models=models)
            return number
        except ClusterError:
            taken = (NETWORK / netdev_of(number)).exists()
            for daemon in daemon_pids(place):
                os.kill(daemon, signal.SIGKILL)
            if not taken:
                raise


def make_switch(place: Place, number: int, *, images: Path, models: Path) -> None:
    """Start the daemon in a network namespace of its own and plug this machine in.

    `images` and `models` are what the lab's registry and hub serve.
    """
    log = place.root / "daemon.log"
    with log.open("ab") as sink:
        alone = ["unshare", "--net", sys.executable, "-I", "-S", str(lab_files() / DAEMON)]
        words = [*alone, str(images / "registry"), str(models), str(place.root)]
        daemon = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True)
    await_that(lambda: _has_own_network(daemon.pid), "the lab's switch did not start", log=str(log))
    own = netdev_of(number)
    rows = ["link set lo up", "link add mgmt type bridge", "link set mgmt up"]
    rows.append(f"addr add {management_of(number, 2)}/24 dev mgmt")
    for index in map(PORTS.index, CABLED):
        rows += [f"link add fabric{index} mtu {FABRIC_MTU} type bridge", f"link set fabric{index} up"]
    rows.append(f"link add machine type veth peer name {own} netns {os.getpid()}")
    rows.append("link set machine master mgmt up")
    ip_in(daemon.pid, rows)
    run(["ip", "-batch", "-"], stdin=f"addr add {management_of(number, 1)}/24 dev {own}\nlink set {own} up\n")
    await_that(lambda: _is_plugged_in(number), f"{own} does not come up")


def plug_in(switch: int, spark: Spark, init: int) -> None:
    """Give a host its netdevs and addresses. Port 0 has no cable: its netdevs exist and are down.

    Those of its last boot are removed first: the kernel does that too, but some time after the namespace ended.
    """
    old = "".join(f"link del {_end(wire, spark)}\n" for wire in range(len(PORTS) + 1))
    words = ["nsenter", "--target", str(switch), "--net", "ip", "-force", "-batch", "-"]
    subprocess.run(words, input=old, text=True, capture_output=True, check=False)
    own, netdev = _end(0, spark), MANAGEMENT_NETDEV
    wires = [f"link add {own} type veth peer name {netdev} address {spark.mac(0)} netns {init}"]
    wires.append(f"link set {own} master mgmt up")
    inside = ["link set lo up", f"addr add {spark.management}/24 dev {netdev}", f"link set {netdev} up"]
    for index, port in enumerate(PORTS):
        end = _end(index + 1, spark)
        peer = f"peer name {port.netdev} address {spark.mac(index + 1)} mtu {FABRIC_MTU} netns {init}"
        wires.append(f"link add {end} mtu {FABRIC_MTU} type veth {peer}")
        if port in CABLED:
            wires.append(f"link set {end} master fabric{index} up")
            inside += [f"addr add {spark.fabric(port)}/24 dev {port.netdev}", f"link set {port.netdev} up"]
    ip_in(switch, wires)
    ip_in(init, inside)


def set_cables(switch: int, spark: Spark, ports: Sequence[Function | None], state: str) -> None:
    """Pull a host's cables out at the switch ("down"), or plug them in ("up"); None is the management cable."""
    ends = [_end(PORTS.index(port) + 1 if port else 0, spark) for port in ports]
    ip_in(switch, [f"link set {end} {state}" for end in ends])


def recable(switch: int, spark: Spark, init: int, old: Sequence[Function], new: Sequence[Function]) -> None:
    """Move a host's fabric from one QSFP port to the other, addresses included."""
    wires, inside = [], []
    for was, now, cabled in zip(old, new, CABLED, strict=True):
        wires.append(f"link set {_end(PORTS.index(was) + 1, spark)} down")
        wires.append(f"link set {_end(PORTS.index(now) + 1, spark)} master fabric{PORTS.index(cabled)} up")
        inside += [f"addr flush dev {was.netdev}", f"link set {was.netdev} down", f"link set {now.netdev} up"]
        inside.append(f"addr replace {spark.fabric(cabled)}/24 dev {now.netdev}")
    ip_in(switch, wires)
    ip_in(init, inside)


def _end(wire: int, spark: Spark) -> str:
    return f"h{spark.number}w{wire}"


def _has_own_network(pid: int) -> bool:
    """Whether `unshare` has made the namespace. Raises ClusterError when the process is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    except OSError:
        raise ClusterError("the lab's switch did not start", code="lab-start-failed") from None
