"""Which links of a host face its peers: found from what the hosts say, paired by subnet, never by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from plan_tools import identity, links, names, one_cable, port, recipe, seen, wanted

from cluster.spark.fabric import Fabric, drift, netdev_of, pair, recorded
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding
from cluster.spark.links import Links, PortGid
from cluster.spark.look import Seen, check_set
from cluster.spark.processes import Firewall


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


def of(number: int, *ports: str) -> Links:
    """A host's links, each `HCA NETDEV ADDRESS…` with its number for N; without an address the port is down."""
    rows = [text.replace("N", str(number)).split(" ") for text in ports]
    return links(*(port(*row, state="ACTIVE" if len(row) > 2 else "DOWN") for row in rows))


PAIRS = {
    "two cables": (
        ("a e0 10.0.0.N/24", "b e1 10.0.1.N/24", "c e2 10.0.2.N/24", "d e3 10.0.3.N/24"),
        ("a", "b", "c", "d"),
        "10.0.0.2",
    ),
    "twins on one subnet": (("a e0 10.0.0.N/24", "b e1 10.0.0.N0/24"), ("a", "b"), "10.0.0.2"),
    "mlx5": (("mlx5_0 enp1s0f0np0 10.0.0.N/24", "mlx5_1 enp1s0f1np1"), ("mlx5_0",), "10.0.0.2"),
    "link-local ones come last": (("a e0 169.254.35.N/16", "b e1 10.0.0.N/24"), ("b", "a"), "10.0.0.2"),
    "only link-local ones": (("a e0 169.254.1.N/16",), ("a",), "169.254.1.2"),
    "IPv4 before IPv6, an HCA once": (("a e0 fe80::N/64 fd00:1::N/64 10.0.0.N/24",), ("a",), "10.0.0.2"),
    "only IPv6": (("a e0 fd00:1::N/64",), ("a",), "fd00:1::2"),
}


@pytest.mark.parametrize("what", PAIRS)
def test_equal_hosts(what: str) -> None:
    ports, hcas, address = PAIRS[what]
    fabric = paired(of(1, *ports), of(2, *ports))
    assert fabric.rdma
    assert (fabric.hosts["spark1"].hcas, fabric.hosts["spark2"].hcas) == (hcas, hcas)
    assert fabric.hosts["spark2"].address == address


def test_crossed_ports() -> None:
    """The cable is in port 0 here and in port 1 there: names differ between the hosts."""
    fabric = paired(one_cable(1, connector=0), one_cable(2, connector=1))
    assert fabric.rdma
    assert fabric.hosts["spark1"].hcas == ("rocep1s0f0", "roceP2p1s0f0")
    assert fabric.hosts["spark2"].hcas == ("rocep1s0f1", "roceP2p1s0f1")
    assert fabric.hosts["spark2"].netdev == "enp1s0f1np1"


def test_only_what_shares_a_subnet_counts() -> None:
    """A second cable leads elsewhere: its HCA must not be given to NCCL."""
    fabric = paired(of(1, "a e1 10.0.1.1/24", "b e2 10.0.2.1/24"), of(2, "a e1 10.0.3.2/24", "b e2 10.0.1.2/24"))
    assert facing(fabric, "spark1") == [("a", "e1", "10.0.1.1")]
    assert facing(fabric, "spark2") == [("b", "e2", "10.0.1.2")]
    assert not paired(of(1, "a e1 fe80::N/64"), of(2, "a e1 fe80::N/64")).paired, "fe80:: is everywhere"


def test_without_rdma_the_management_address_is_taken() -> None:
    plain = links(port("", "enP7s7", "192.168.1.41/24"))
    fabric = paired(plain, links(port("", "enP7s7", "192.168.1.42/24")))
    assert (fabric.paired, fabric.rdma) == (False, False)
    end = fabric.hosts["spark1"]
    assert (end.address, end.netdev, end.hcas, end.facing) == ("192.168.1.41", "enP7s7", (), ())


NO_PAIRS = {
    "unread": Missing("no sysfs"),
    "none": links(),
    "down": links(port("a", "eth1", "192.168.100.12/24", state="DOWN")),
    "init": links(port("a", "eth1", "192.168.100.12/24", state="INIT")),
    "no address": links(port("a", "eth1")),
    "another subnet": links(port("a", "eth1", "192.168.101.12/24")),
}


@pytest.mark.parametrize("what", NO_PAIRS)
def test_no_pair(what: str) -> None:
    fabric = paired(one_cable(1), NO_PAIRS[what])
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
    """`cluster.seen` as a rank carries it."""
    ends = {name: end.as_label() for name, end in fabric.hosts.items()}
    return json.loads(json.dumps({"hosts": ends, "paired": fabric.paired}))


def test_drift_is_told_by_host() -> None:
    was = recorded(label(paired(one_cable(1), one_cable(2))))
    now = paired(one_cable(1), one_cable(2, connector=1))
    found = drift(was, now)
    assert [(one.level, one.check, one.host) for one in found] == [("warning", "drift", "spark2")] * 2
    assert [one.what for one in found] == [
        "netdev was enp1s0f0np0 at the start and is enp1s0f1np1 now",
        "HCAs was rocep1s0f0, roceP2p1s0f0 at the start and is rocep1s0f1, roceP2p1s0f1 now",
    ]


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
    assert recorded(label(fabric)) == fabric


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


def check(seens: Sequence[Seen], **changes: Any) -> list[Finding]:
    return list(check_set(wanted(len(seens), **changes), seens, pair(seens)))


def with_links(second: Links) -> list[Seen]:
    return [seen(1), seen(2, links=second)]


def with_hca(found: Links, hca: str, **changes: Any) -> Links:
    return replace(found, links=tuple(replace(one, **changes) if one.hca == hca else one for one in found.links))


def test_another_port_is_noted_and_no_fault() -> None:
    """Names are told to each host by itself."""
    [note] = check(with_links(one_cable(2, connector=1)))
    assert (note.level, note.check, note.host) == ("note", "cabling", "spark2")
    assert note.evidence == "spark1 enp1s0f0np0; spark2 enp1s0f1np1"


def test_one_twin_is_told_by_its_state() -> None:
    down = with_hca(one_cable(2), "roceP2p1s0f0", state="DOWN")
    found = [one for one in check(with_links(down)) if one.host == "spark2"]
    assert names(found) == [("warning", "twins")]
    assert "ip link set enP2p1s0f0np0 up" in found[0].remedy


def test_the_twin_whose_other_end_is_down_is_looked_at_there() -> None:
    down = with_hca(one_cable(2), "roceP2p1s0f0", state="DOWN")
    [finding] = [one for one in check(with_links(down)) if one.host == "spark1"]
    assert finding.remedy == "look at the other end of enP2p1s0f0np0: is it up, and in the same subnet?"


def test_a_port_of_40_gigabit() -> None:
    [warning] = check(with_links(with_hca(one_cable(2), "rocep1s0f0", rate_gbps=40.0)))
    assert (warning.level, warning.check, warning.evidence) == ("warning", "rate", "40 Gb/s")
    for rate in (100.0, 200.0, None):
        assert check(with_links(with_hca(one_cable(2), "rocep1s0f0", rate_gbps=rate))) == []


def test_one_address_on_two_hosts() -> None:
    found = [one for one in check(with_links(one_cable(1))) if one.check == "address"]
    assert names(found) == [("fault", "address")] * 2
    assert found[0].evidence == "192.168.100.11: spark1 enp1s0f0np0, spark2 enp1s0f0np0"


V2 = PortGid(5, "0000:0000:0000:0000:0000:ffff:c0a8:640c", "RoCE v2")
V1 = replace(V2, index=4, kind="IB/RoCE v1")
LOCAL = PortGid(1, "fe80:0000:0000:0000:4ebb:47ff:fe2c:7a3f", "RoCE v2")


def with_gids(*gids: PortGid) -> list[Seen]:
    return with_links(with_hca(one_cable(2), "rocep1s0f0", gids=gids))


def test_the_gid_of_the_address_at_whatever_index() -> None:
    assert check(with_gids(LOCAL, V1, V2)) == []
    assert check(with_gids()) == []  # not asked


def test_no_gid_for_the_address() -> None:
    [fault] = check(with_gids(LOCAL, V1))
    assert (fault.level, fault.check, fault.host) == ("fault", "gid", "spark2")
    assert fault.what.startswith("rocep1s0f0 has no RoCE v2 GID for 192.168.100.12")
    assert fault.evidence.startswith("1: fe80:")
    assert names(check(with_gids(LOCAL), allow_socket=True)) == [("warning", "gid")]
    assert names(check(with_gids(LOCAL), of=recipe(transport="socket"))) == [("warning", "gid")]


def with_sources(**sources: str) -> list[Seen]:
    """spark2, whose kernel sends to the subnet of each fabric address from another one."""
    by_address = {"192.168.100.12": sources["first"], "192.168.200.12": sources["second"]}
    found = one_cable(2)
    netdevs = tuple(
        replace(row, sources={own.split("/")[0]: by_address.get(own.split("/")[0], "") for own in row.addresses})
        for row in found.netdevs
    )
    return with_links(replace(found, netdevs=netdevs))


def test_each_subnet_over_its_own_netdev() -> None:
    assert check(with_sources(first="192.168.100.12", second="192.168.200.12")) == []
    assert check(with_sources(first="", second="")) == []


def test_a_subnet_that_leaves_elsewhere() -> None:
    [warning] = check(with_sources(first="192.168.1.42", second="192.168.200.12"))
    assert (warning.level, warning.check, warning.host) == ("warning", "route", "spark2")
    assert warning.what == "what goes to 192.168.100.0/24 does not leave over enp1s0f0np0"
    assert warning.evidence == "it leaves from 192.168.1.42 (enP7s7)"


def test_twins_in_one_subnet_are_allowed() -> None:
    """The kernel sends from one of them; the answers come back over that one or its twin, which is the same cable."""

    def twins(number: int) -> Links:
        found = links(
            port("a", "enp1s0f0np0", f"10.0.0.{number}/24"), port("b", "enP2p1s0f0np0", f"10.0.0.{number + 9}/24")
        )
        sent = {f"10.0.0.{number}": f"10.0.0.{number}", f"10.0.0.{number + 9}": f"10.0.0.{number}"}
        return replace(found, netdevs=tuple(replace(row, sources=sent) for row in found.netdevs))

    assert check([seen(1, links=twins(1)), seen(2, links=twins(2))]) == []


def test_a_firewall_that_speaks_of_no_fabric() -> None:
    closed = Firewall("-P INPUT DROP", ("-A INPUT -p tcp --dport 22 -j ACCEPT",))
    found = check([seen(1), seen(2, firewall=closed)])
    assert names(found) == [("warning", "firewall")] * 2
    assert found[0].evidence == "-P INPUT DROP"
    assert "ufw allow in on enp1s0f0np0" in found[0].remedy
    opened = replace(closed, passes=("-A INPUT -s 192.168.0.0/16 -j ACCEPT",))
    assert check([seen(1), seen(2, firewall=opened)]) == []


def test_a_firewall_that_may_not_be_read_is_unknown() -> None:
    [unknown] = check([seen(1), seen(2, firewall=Missing("sudo: a password is required", "refused"))])
    assert (unknown.level, unknown.check, unknown.evidence) == ("unknown", "firewall", "sudo: a password is required")
    assert check([seen(1, firewall=Missing("no"))]) == []  # one host has no fabric


def test_without_sudo_one_line_says_that_the_firewall_is_not_known() -> None:
    """`sudo` says it, of that host alone, and only where sudo is the reason."""
    no_sudo = identity(2, sudo=False)
    refused = Missing("sudo: a password is required", "refused")
    assert check([seen(1), seen(2, identity=no_sudo, firewall=refused)]) == []
    broken = Missing("nft: core dumped", "unreadable")
    assert names(check([seen(1), seen(2, identity=no_sudo, firewall=broken)])) == [("unknown", "firewall")]
