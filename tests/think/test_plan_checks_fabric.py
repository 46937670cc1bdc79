"""Checks of what lies between the hosts: routes, GIDs, rates, firewall, cables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from plan_tools import identity, links, names, one_cable, port, recipe, seen, wanted

from cluster.spark.fabric import pair
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding
from cluster.spark.links import Links, PortGid
from cluster.spark.look import Seen, check_set
from cluster.spark.processes import Firewall


def check(seens: Sequence[Seen], **changes: Any) -> list[Finding]:
    return list(check_set(wanted(len(seens), **changes), seens, pair(seens)))


def with_links(second: Links) -> list[Seen]:
    return [seen(1), seen(2, links=second)]


def with_hca(found: Links, hca: str, **changes: Any) -> Links:
    return replace(found, links=tuple(replace(one, **changes) if one.hca == hca else one for one in found.links))


# cables


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


# GIDs


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


# routes


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


# firewall


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
