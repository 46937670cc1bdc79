"""Which links of a host face its peers: found from what the hosts say, paired by subnet, never by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plan_tools import identity, links, one_cable, port, seen

from cluster.spark.fabric import Fabric, drift, netdev_of, pair, recorded
from cluster.spark.fact import Missing
from cluster.spark.links import Links


def paired(*found: Links | Missing, **overrides: Any) -> Fabric:
    return pair([seen(number, links=one) for number, one in enumerate(found, 1)], overrides)


def facing(fabric: Fabric, host: str) -> list[tuple[str, str, str]]:
    return [(link.hca, link.netdev, link.address) for link in fabric.hosts[host].facing]


def test_one_cable() -> None:
    fabric = paired(one_cable(1), one_cable(2))
    assert fabric.paired
    assert fabric.rdma
    assert facing(fabric, "spark2") == [
        ("rocep1s0f0", "enp1s0f0np0", "192.168.100.12"),
        ("roceP2p1s0f0", "enP2p1s0f0np0", "192.168.200.12"),
    ]
    end = fabric.hosts["spark1"]
    assert (end.address, end.netdev, end.hcas) == ("192.168.100.11", "enp1s0f0np0", ("rocep1s0f0", "roceP2p1s0f0"))


def test_crossed_ports() -> None:
    """The cable is in port 0 here and in port 1 there: names differ between the hosts."""
    fabric = paired(one_cable(1, connector=0), one_cable(2, connector=1))
    assert fabric.rdma
    assert fabric.hosts["spark1"].hcas == ("rocep1s0f0", "roceP2p1s0f0")
    assert fabric.hosts["spark2"].hcas == ("rocep1s0f1", "roceP2p1s0f1")
    assert fabric.hosts["spark2"].netdev == "enp1s0f1np1"


def test_two_cables() -> None:
    def both(number: int) -> Links:
        return links(
            port("rocep1s0f0", "enp1s0f0np0", f"192.168.100.{number}/24"),
            port("rocep1s0f1", "enp1s0f1np1", f"192.168.101.{number}/24"),
            port("roceP2p1s0f0", "enP2p1s0f0np0", f"192.168.102.{number}/24"),
            port("roceP2p1s0f1", "enP2p1s0f1np1", f"192.168.103.{number}/24"),
        )

    fabric = paired(both(1), both(2))
    assert fabric.hosts["spark1"].hcas == ("rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1")
    assert fabric.hosts["spark1"].address == "192.168.100.1"


def test_only_what_shares_a_subnet_counts() -> None:
    """A second cable leads elsewhere: its HCA must not be given to NCCL."""
    here = links(port("a", "eth1", "10.0.1.1/24"), port("b", "eth2", "10.0.2.1/24"))
    there = links(port("a", "eth1", "10.0.3.2/24"), port("b", "eth2", "10.0.1.2/24"))
    fabric = paired(here, there)
    assert facing(fabric, "spark1") == [("a", "eth1", "10.0.1.1")]
    assert facing(fabric, "spark2") == [("b", "eth2", "10.0.1.2")]


def test_twins_on_one_subnet() -> None:
    def twins(number: int) -> Links:
        return links(
            port("rocep1s0f0", "enp1s0f0np0", f"10.0.0.{number}/24"),
            port("roceP2p1s0f0", "enP2p1s0f0np0", f"10.0.0.{number + 100}/24"),
        )

    fabric = paired(twins(1), twins(2))
    assert fabric.hosts["spark1"].hcas == ("rocep1s0f0", "roceP2p1s0f0")
    assert fabric.hosts["spark1"].address == "10.0.0.1"


def test_hcas_called_mlx5() -> None:
    def plain(number: int) -> Links:
        return links(port("mlx5_0", "enp1s0f0np0", f"10.0.0.{number}/24"), port("mlx5_1", "enp1s0f1np1", state="DOWN"))

    assert paired(plain(1), plain(2)).hosts["spark2"].hcas == ("mlx5_0",)


def test_link_local_addresses_pair_and_come_last() -> None:
    def both(number: int) -> Links:
        return links(port("a", "eth1", f"169.254.35.{number}/16"), port("b", "eth2", f"10.0.0.{number}/24"))

    fabric = paired(both(1), both(2))
    assert fabric.hosts["spark1"].address == "10.0.0.1"
    assert fabric.hosts["spark1"].hcas == ("b", "a")
    only = paired(links(port("a", "eth1", "169.254.1.1/16")), links(port("a", "eth1", "169.254.9.9/16")))
    assert only.rdma
    assert only.hosts["spark2"].address == "169.254.9.9"


def test_ipv6() -> None:
    """A routed IPv6 network pairs, fe80:: is everywhere and does not; IPv4 comes first, and an HCA counts once."""

    def both(number: int) -> Links:
        return links(port("a", "eth1", f"fe80::{number}/64", f"fd00:1::{number}/64", f"10.0.0.{number}/24"))

    fabric = paired(both(1), both(2))
    assert fabric.hosts["spark1"].address == "10.0.0.1"
    assert fabric.hosts["spark1"].hcas == ("a",)
    six = paired(links(port("a", "eth1", "fd00:1::1/64")), links(port("a", "eth1", "fd00:1::2/64")))
    assert six.hosts["spark2"].address == "fd00:1::2"
    assert not paired(links(port("a", "eth1", "fe80::1/64")), links(port("a", "eth1", "fe80::2/64"))).paired


def test_without_rdma_the_management_address_is_taken() -> None:
    plain = links(port("", "enP7s7", "192.168.1.41/24"))
    fabric = paired(plain, links(port("", "enP7s7", "192.168.1.42/24")))
    assert (fabric.paired, fabric.rdma) == (False, False)
    end = fabric.hosts["spark1"]
    assert (end.address, end.netdev, end.hcas, end.facing) == ("192.168.1.41", "enP7s7", (), ())


@pytest.mark.parametrize(
    "other",
    [
        Missing("no sysfs"),
        links(),
        links(port("a", "eth1", "192.168.100.12/24", state="DOWN")),
        links(port("a", "eth1", "192.168.100.12/24", state="INIT")),
        links(port("a", "eth1")),
        links(port("a", "eth1", "192.168.101.12/24")),
    ],
    ids=["unread", "none", "down", "init", "no address", "another subnet"],
)
def test_no_pair(other: Links | Missing) -> None:
    fabric = paired(one_cable(1), other)
    assert not fabric.paired
    assert fabric.hosts["spark1"].address == "192.168.1.41"


def test_three_hosts_on_a_switch() -> None:
    fabric = paired(one_cable(1), one_cable(2, connector=1), one_cable(3))
    assert fabric.rdma
    assert [end.address for end in fabric.hosts.values()] == ["192.168.100.11", "192.168.100.12", "192.168.100.13"]


def test_three_hosts_in_a_ring_have_no_subnet_in_common() -> None:
    ring = [
        links(port("a", "eth1", f"10.0.{number}.1/24"), port("b", "eth2", f"10.0.{number % 3 + 1}.2/24"))
        for number in (1, 2, 3)
    ]
    assert not paired(*ring).paired


def test_netdevs_that_the_user_names() -> None:
    """Named, a netdev counts with or without RDMA, and the others do not."""
    here, there = one_cable(1), one_cable(2)
    fabric = paired(here, there, spark1=["enP2p1s0f0np0"])
    assert facing(fabric, "spark1") == [("roceP2p1s0f0", "enP2p1s0f0np0", "192.168.200.11")]
    assert facing(fabric, "spark2") == [("roceP2p1s0f0", "enP2p1s0f0np0", "192.168.200.12")]
    plain = paired(here, there, spark1=["enP7s7"], spark2=["enP7s7"])
    assert (plain.paired, plain.rdma, plain.hosts["spark1"].address) == (True, False, "192.168.1.41")
    assert not paired(here, there, spark1=["nowhere"]).paired


def test_one_host_needs_no_fabric() -> None:
    fabric = paired(one_cable(1))
    assert not fabric.paired
    assert fabric.hosts["spark1"].address == "192.168.1.41"


def test_a_host_that_does_not_say_who_it_is() -> None:
    fabric = pair([seen(1, identity=Missing("no"), links=Missing("no"))])
    assert fabric.hosts["spark1"].address == ""
    assert netdev_of(Missing("no"), "10.0.0.1") == ""


def label(fabric: Fabric) -> dict[str, Any]:
    """As `cluster.seen` held it at first."""
    ends = {
        name: {"address": end.address, "netdev": end.netdev, "hcas": list(end.hcas), "mtu": None}
        for name, end in fabric.hosts.items()
    }
    return {"hosts": ends, "paired": fabric.paired}


def test_what_was_recorded_is_read_back() -> None:
    fabric = paired(one_cable(1), one_cable(2))
    back = recorded(label(fabric))
    assert back.rdma
    for name, end in fabric.hosts.items():
        assert (back.hosts[name].address, back.hosts[name].hcas) == (end.address, end.hcas)
    assert drift(back, fabric) == []
    alone = pair([seen(1, identity=identity(1, management_address=""), links=Missing("no"))])
    assert recorded(label(alone)).hosts["spark1"].address == ""


def test_drift_is_told_by_host() -> None:
    was = recorded(label(paired(one_cable(1), one_cable(2))))
    now = paired(one_cable(1), one_cable(2, connector=1))
    found = drift(was, now)
    assert [(one.level, one.check, one.host, one.what) for one in found] == [
        ("warning", "drift", "spark2", "netdev was enp1s0f0np0 at the start and is enp1s0f1np1 now"),
        (
            "warning",
            "drift",
            "spark2",
            "HCAs was rocep1s0f0, roceP2p1s0f0 at the start and is rocep1s0f1, roceP2p1s0f1 now",
        ),
    ]


# what a deployment was started over


def new_label(fabric: Fabric) -> dict[str, Any]:
    """`cluster.seen` as a rank carries it."""
    text = json.dumps({"hosts": {name: end.as_label() for name, end in fabric.hosts.items()}, "paired": fabric.paired})
    read: dict[str, Any] = json.loads(text)
    return read


@pytest.mark.parametrize(
    "fabric",
    [
        paired(one_cable(1), one_cable(2)),
        paired(links(port("a", "eth1", "fd00:1::1/64", mtu=1500)), links(port("b", "eth2", "fd00:1::2/64"))),
        paired(Missing("no ip"), Missing("no ip")),
    ],
    ids=["twins", "IPv6", "not paired"],
)
def test_the_label_says_what_was_found(fabric: Fabric) -> None:
    """Every HCA with its own netdev, address, MTU and subnet."""
    assert recorded(new_label(fabric)) == fabric


def test_a_label_of_the_old_form() -> None:
    """It told all HCAs and one address: which HCA has it is not known, so none is given it."""
    end = {"address": "192.168.100.11", "netdev": "enp1s0f0np0", "hcas": ["rocep1s0f0", "roceP2p1s0f0"], "mtu": 9000}
    old = recorded({"hosts": {"spark1": end}, "paired": True})
    found = old.hosts["spark1"]
    assert (found.address, found.netdev, found.facing) == ("192.168.100.11", "enp1s0f0np0", ())
    assert found.hcas == ("rocep1s0f0", "roceP2p1s0f0")
    assert old.rdma
    now = paired(one_cable(1), one_cable(2))
    assert drift(old, now) == []


def test_a_label_that_tells_less() -> None:
    assert recorded({"hosts": {"spark1": {}}}).hosts["spark1"].hcas == ()
    assert not recorded({"hosts": {"spark1": {}}}).paired
