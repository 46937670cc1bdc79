"""Faults of cables, addresses and counters."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.lab import wires
from cluster.lab.faults.fault import Fault, Scene
from cluster.lab.shape import CABLED, FABRIC_MTU, PORTS, Port

SMALL_MTU = 1500


def pull_cable(scene: Scene) -> None:
    """Both twins lose their carrier, as when the QSFP cable is pulled."""
    wires.cut(scene.switch, scene.spark, CABLED, plugged=False)


def plug_cable(scene: Scene) -> None:
    """Undo pull_cable and pull_twin."""
    wires.cut(scene.switch, scene.spark, CABLED, plugged=True)


def pull_twin(scene: Scene) -> None:
    """The second twin loses its carrier: half the bandwidth."""
    wires.cut(scene.switch, scene.spark, CABLED[1:], plugged=False)


def pull_management(scene: Scene) -> None:
    """The management network goes silent: no SSH, and open connections hang."""
    wires.cut_management(scene.switch, scene.spark, plugged=False)


def plug_management(scene: Scene) -> None:
    """Undo pull_management."""
    wires.cut_management(scene.switch, scene.spark, plugged=True)


def shrink_mtu(scene: Scene) -> None:
    """1500 on this host's fabric netdevs, 9000 on the others."""
    wires.ip_in(scene.init, [f"link set {port.netdev} mtu {SMALL_MTU}" for port in CABLED])


def grow_mtu(scene: Scene) -> None:
    """Undo shrink_mtu."""
    wires.ip_in(scene.init, [f"link set {port.netdev} mtu {FABRIC_MTU}" for port in CABLED])


def take_addresses(scene: Scene) -> None:
    """No IPv4 on the fabric, and so no IPv4 entries among the GIDs."""
    give_addresses(scene)  # so that there is something to take
    spark = scene.spark
    wires.ip_in(scene.init, [f"addr del {spark.fabric(port)}/24 dev {port.netdev}" for port in CABLED])
    take_gids(scene, CABLED)


def give_addresses(scene: Scene) -> None:
    """Undo take_addresses."""
    spark = scene.spark
    wires.ip_in(scene.init, [f"addr replace {spark.fabric(port)}/24 dev {port.netdev}" for port in CABLED])
    give_gids(scene, CABLED)


def take_gids(scene: Scene, ports: Sequence[Port]) -> None:
    """The entries of IPv4 leave the GID tables of these ports."""
    for port in ports:
        for number in (2, 3):
            (scene.root / f"sys/class/infiniband/{port.hca}/ports/1/gids/{number}").unlink(missing_ok=True)


def give_gids(scene: Scene, ports: Sequence[Port]) -> None:
    """The entries of IPv4, RoCE v1 and v2, of the ports that are cabled now, in the order of `CABLED`."""
    for port, cabled in zip(ports, CABLED, strict=True):
        four = [int(part) for part in scene.spark.fabric(cabled).split(".")]
        mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}\n".format(*four)
        for number, kind in ((2, "IB/RoCE v1"), (3, "RoCE v2")):
            one = scene.root / f"sys/class/infiniband/{port.hca}/ports/1"
            (one / f"gids/{number}").write_text(mapped)
            (one / f"gid_attrs/types/{number}").write_text(f"{kind}\n")


def use_other_port(scene: Scene) -> None:
    """The cable is in port 0 here: addresses, GIDs and carrier move to the f0 netdevs."""
    recable(scene, old=CABLED, new=PORTS[:2])


def use_usual_port(scene: Scene) -> None:
    """Undo use_other_port."""
    recable(scene, old=PORTS[:2], new=CABLED)


def recable(scene: Scene, *, old: Sequence[Port], new: Sequence[Port]) -> None:
    """Move the cable from one QSFP port to the other."""
    wires.recable(scene.switch, scene.spark, scene.init, old=old, new=new)
    take_gids(scene, old)
    give_gids(scene, new)


def hold_counters(scene: Scene) -> None:
    """The HCAs' byte counters stand still, as when NCCL went over sockets."""
    still = scene.place.root / "still"
    still.mkdir(exist_ok=True)
    (still / scene.spark.name).touch()


def free_counters(scene: Scene) -> None:
    """Undo hold_counters."""
    (scene.place.root / "still" / scene.spark.name).unlink(missing_ok=True)


NETWORK_FAULTS = (
    Fault("link-down", "the fabric's cable is pulled: both twins down", pull_cable, plug_cable),
    Fault("one-twin", "the second twin of the fabric is down", pull_twin, plug_cable),
    Fault("unreachable", "the management cable is pulled: SSH times out", pull_management, plug_management),
    Fault("mtu", "MTU 1500 on this host's fabric netdevs", shrink_mtu, grow_mtu),
    Fault("no-ipv4", "no IPv4 address on the fabric netdevs", take_addresses, give_addresses),
    Fault("other-port", "the cable is in port 0 here, in port 1 elsewhere", use_other_port, use_usual_port),
    Fault("counters-still", "the HCAs' byte counters stand still", hold_counters, free_counters),
)
