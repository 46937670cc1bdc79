"""Which links a fabric test goes over, and what each end is told."""

from __future__ import annotations

from dataclasses import replace

from plan_tools import links, one_cable, port, seen

from cluster.spark.fabric import pair
from cluster.spark.fabric_test import Way, rounds, untested
from cluster.spark.fact import Missing
from cluster.spark.links import Links, PortGid

Found = dict[str, Links | Missing]


def with_gids(found: Links, index: int) -> Links:
    """The links with a RoCE v2 GID for each IPv4 address, at this index; v1 comes just before it."""
    told = []
    for link in found.links:
        rows = [PortGid(0, "fe80:0000:0000:0000:4ebb:47ff:fe2a:9d3c", "RoCE v2")]
        for address in link.addresses:
            four = [int(part) for part in address.split("/")[0].split(".")]
            gid = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*four)
            rows += [PortGid(index - 1, gid, "IB/RoCE v1"), PortGid(index, gid, "RoCE v2")]
        told.append(replace(link, gids=tuple(rows)))
    return replace(found, links=tuple(told))


def sparks(*found: Links | Missing) -> Found:
    return {f"spark{number}": links for number, links in enumerate(found, 1)}


def planned(found: Found, **tools: Missing | None) -> list[list[Way]]:
    fabric = pair([seen(links=links, host=host) for host, links in found.items()])
    return rounds(fabric, found, {host: tools.get(host) for host in found})


def texts(todo: list[list[Way]]) -> list[list[str]]:
    return [[way.text for way in ways] for ways in todo]


TWO = sparks(with_gids(one_cable(1), 3), with_gids(one_cable(2, connector=1), 5))


def test_each_link_both_ways_then_all_at_once() -> None:
    assert texts(planned(TWO)) == [
        ["spark1 enp1s0f0np0 → spark2 enp1s0f1np1"],
        ["spark2 enp1s0f1np1 → spark1 enp1s0f0np0"],
        ["spark1 enP2p1s0f0np0 → spark2 enP2p1s0f1np1"],
        ["spark2 enP2p1s0f1np1 → spark1 enP2p1s0f0np0"],
        ["spark1 enp1s0f0np0 → spark2 enp1s0f1np1", "spark1 enP2p1s0f0np0 → spark2 enP2p1s0f1np1"],
    ]


def test_every_end_has_its_own_hca_and_gid() -> None:
    way = planned(TWO)[0][0]
    assert (way.sender.hca, way.sender.address, way.sender.gid_index) == ("rocep1s0f0", "192.168.100.11", 3)
    assert (way.receiver.hca, way.receiver.address, way.receiver.gid_index) == ("rocep1s0f1", "192.168.100.12", 5)
    assert way.has_rdma
    assert way.obstacles == ()
    assert way.rate_gbps == 100.0


def test_neighbouring_pairs_of_three() -> None:
    todo = planned(sparks(*(with_gids(one_cable(number), 3) for number in (1, 2, 3))))
    assert [sorted(ways[0].hosts) for ways in todo] == [["spark1", "spark2"]] * 5 + [["spark2", "spark3"]] * 5


def test_one_link_is_not_tested_together() -> None:
    found = sparks(*(links(port("mlx5_0", "enp1s0f0np0", f"192.168.100.1{number}/24")) for number in (1, 2)))
    assert len(planned(found)) == 2


def test_twins_in_one_subnet_and_a_netdev_in_two() -> None:
    both = sparks(
        *(
            links(
                port("mlx5_0", "enp1s0f0np0", f"10.0.0.1{number}/24", f"10.9.0.1{number}/24"),
                port("mlx5_1", "enP2p1s0f0np0", f"10.0.0.2{number}/24"),
            )
            for number in (1, 2)
        )
    )
    together = ["spark1 enp1s0f0np0 → spark2 enp1s0f0np0", "spark1 enP2p1s0f0np0 → spark2 enP2p1s0f0np0"]
    assert texts(planned(both))[4] == together
    assert len(planned(both)) == 5


def test_no_fabric_no_rounds() -> None:
    assert planned(sparks(one_cable(1))) == []
    assert planned(sparks(one_cable(1), links(port("", "enP7s7", "192.168.1.42/24")))) == []


def test_why_rdma_cannot_be_measured() -> None:
    gone = Missing("ib_write_bw: not found", "absent")
    assert planned(TWO, spark2=gone)[0][0].obstacles == (("spark2", gone),)
    assert [host for host, _ in planned(TWO, spark1=gone, spark2=gone)[0][0].obstacles] == ["spark1", "spark2"]
    drifted = sparks(with_gids(one_cable(1), 3), one_cable(2))
    assert planned(drifted)[0][0].obstacles == (("spark2", Missing("rocep1s0f0 has no RoCE v2 GID of 192.168.100.12")),)


def test_ends_whose_links_cannot_be_read_any_more() -> None:
    fabric = pair([seen(links=links, host=host) for host, links in TWO.items()])
    way = rounds(fabric, TWO | {"spark2": Missing("it hung", "timeout")}, {"spark1": None, "spark2": None})[0][0]
    assert way.obstacles == (("spark2", Missing("it hung", "timeout")),)
    assert way.rate_gbps == 100.0


def test_an_ipv6_link_is_left_to_tcp() -> None:
    found = sparks(*(links(port("mlx5_0", "enp1s0f0np0", f"fd00::1{number}/64")) for number in (1, 2)))
    ((_, why), _) = planned(found)[0][0].obstacles
    assert why.why == "enp1s0f0np0 has an IPv6 address, over which ib_write_bw is not tried"


def test_without_hcas_there_is_nothing_to_miss() -> None:
    plain = sparks(*(links(port("", "eth1", f"10.0.0.1{number}/24")) for number in (1, 2)))
    fabric = pair(
        [seen(links=links, host=host) for host, links in plain.items()], {"spark1": ["eth1"], "spark2": ["eth1"]}
    )
    way = rounds(fabric, plain, {"spark1": Missing("x"), "spark2": Missing("x")})[0][0]
    assert (way.has_rdma, way.obstacles, way.rate_gbps) == (False, (), None)


def test_links_that_are_set_up_and_lead_nowhere() -> None:
    """One Spark has addresses on a second cable; ports without an address are no news, and nor are those unread."""
    second = port("rocep1s0f1", "enp1s0f1np1", "192.168.150.11/24", state="DOWN")
    wide = replace(one_cable(1), links=(*one_cable(1).links[:1], second[0], *one_cable(1).links[2:]))
    found = sparks(wide, one_cable(2))
    fabric = pair([seen(links=links, host=host) for host, links in found.items()])
    assert [(host, link.netdev) for host, link in untested(fabric, found)] == [("spark1", "enp1s0f1np1")]
    assert list(untested(fabric, found | {"spark1": Missing("x")})) == []
