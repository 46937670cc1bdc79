"""The set of hosts: which links face the peers (paired by subnet, never by name), and what must be equal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from plan_tools import identity, links, names, one_cable, port, recipe, seen, wanted

from cluster.argv.question import Answer
from cluster.spark.clock import Clock
from cluster.spark.fabric import Fabric, check_pings, drift, netdev_of, pair, ping_questions, recorded
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding
from cluster.spark.links import Links, PortGid
from cluster.spark.look import Seen, check_set
from cluster.spark.processes import Firewall


def paired(*found: Links | Missing, **overrides: Any) -> Fabric:
    return pair([seen(number, links=one) for number, one in enumerate(found, 1)], overrides)


def of(number: int, *ports: str) -> Links:
    """A host's links, each `HCA NETDEV ADDRESS…` with its number for N; without an address the port is down."""
    rows = [text.replace("N", str(number)).split(" ") for text in ports]
    return links(*(port(*row, state="ACTIVE" if len(row) > 2 else "DOWN") for row in rows))


Found = list[Links | Missing]


def equal(*ports: str) -> Found:
    """Two hosts with these ports."""
    return [of(1, *ports), of(2, *ports)]


FIRST, SECOND = "rocep1s0f0 enp1s0f0np0 192.168.100.12", "roceP2p1s0f0 enP2p1s0f0np0 192.168.200.12"
ELSEWHERE = [of(1, "a e1 10.0.1.1/24", "b e2 10.0.2.1/24"), of(2, "a e1 10.0.3.2/24", "b e2 10.0.1.2/24")]

PAIRED: dict[str, tuple[Found, list[str]]] = {
    "one cable": ([one_cable(1), one_cable(2)], [FIRST, SECOND]),
    "crossed ports: names differ between the hosts": (
        [one_cable(1), one_cable(2, connector=1)],
        [FIRST.replace("f0", "f1").replace("np0", "np1"), SECOND.replace("f0", "f1").replace("np0", "np1")],
    ),
    "three hosts on a switch": ([one_cable(1), one_cable(2), one_cable(3, connector=1)], [FIRST, SECOND]),
    "a second cable that leads elsewhere is not given to NCCL": (ELSEWHERE, ["b e2 10.0.1.2"]),
    "two cables": (
        equal(*(f"{hca} {hca}0 10.0.{n}.N/24" for n, hca in enumerate("abcd"))),
        [f"{hca} {hca}0 10.0.{n}.2" for n, hca in enumerate("abcd")],
    ),
    "twins on one subnet": (equal("a e0 10.0.0.N/24", "b e1 10.0.0.N0/24"), ["a e0 10.0.0.2", "b e1 10.0.0.20"]),
    "mlx5": (equal("mlx5_0 e0 10.0.0.N/24", "mlx5_1 e1"), ["mlx5_0 e0 10.0.0.2"]),
    "link-local last": (equal("a e0 169.254.35.N/16", "b e1 10.0.0.N/24"), ["b e1 10.0.0.2", "a e0 169.254.35.2"]),
    "only link-local": (equal("a e0 169.254.1.N/16"), ["a e0 169.254.1.2"]),
    "IPv4 before IPv6": (equal("a e0 fe80::N/64 fd00:1::N/64 10.0.0.N/24"), ["a e0 10.0.0.2", "a e0 fd00:1::2"]),
    "only IPv6": (equal("a e0 fd00:1::N/64"), ["a e0 fd00:1::2"]),
    "a twin that the user names": ([one_cable(1), one_cable(2)], [SECOND]),
    "a netdev without RDMA that the user names": (
        [one_cable(1), one_cable(2)],
        [" enP7s7 192.168.1.42"],
    ),
}


NAMED: dict[str, dict[str, list[str]]] = {
    "a twin that the user names": {"spark1": ["enP2p1s0f0np0"]},
    "a netdev without RDMA that the user names": {"spark1": ["enP7s7"], "spark2": ["enP7s7"]},
    "a name of no netdev": {"spark1": ["nowhere"]},
}


@pytest.mark.parametrize("what", PAIRED)
def test_links_that_face_the_peers(what: str) -> None:
    found, expected = PAIRED[what]
    fabric = paired(*found, **NAMED.get(what, {}))
    end = fabric.hosts["spark2"]
    assert [f"{link.hca} {link.netdev} {link.address}" for link in end.facing] == expected
    hca, netdev, address = expected[0].split(" ")
    hcas = tuple(dict.fromkeys(row.split(" ")[0] for row in expected if hca))
    assert (end.netdev, end.address, end.hcas) == (netdev, address, hcas)
    assert (fabric.paired, fabric.rdma) == (True, bool(hca))


PLAIN = links(port("", "enP7s7", "192.168.1.42/24"))
RING: Found = [of(n, f"a e1 10.0.{n}.1/24", f"b e2 10.0.{n % 3 + 1}.2/24") for n in (1, 2, 3)]

NO_PAIRS: dict[str, Found] = {
    "unread": [one_cable(1), Missing("no sysfs")],
    "none": [one_cable(1), links()],
    "down": [one_cable(1), of(2, "a e0")],
    "init": [one_cable(1), links(port("a", "eth1", "192.168.100.12/24", state="INIT"))],
    "no address": [one_cable(1), links(port("a", "eth1"))],
    "another subnet": [one_cable(1), of(2, "a e0 192.168.101.12/24")],
    "fe80:: is everywhere": equal("a e0 fe80::N/64"),
    "no RDMA": [one_cable(1), PLAIN],
    "a ring": RING,
    "a name of no netdev": [one_cable(1), one_cable(2)],
    "one host": [one_cable(1)],
}


@pytest.mark.parametrize("what", NO_PAIRS)
def test_without_a_pair_the_management_address_is_taken(what: str) -> None:
    fabric = paired(*NO_PAIRS[what], **NAMED.get(what, {}))
    end = fabric.hosts["spark1"]
    assert (fabric.paired, fabric.rdma, end.address, end.hcas, end.facing) == (False, False, "192.168.1.41", (), ())


def test_a_host_that_does_not_say_who_it_is() -> None:
    fabric = pair([seen(1, identity=Missing("no"), links=Missing("no"))])
    assert fabric.hosts["spark1"].address == netdev_of(Missing("no"), "10.0.0.1") == ""
    assert netdev_of(PLAIN, "192.168.1.42") == "enP7s7"


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
    "found",
    [
        [one_cable(1), one_cable(2)],
        [links(port("a", "eth1", "fd00:1::1/64", mtu=1500)), links(port("b", "eth2", "fd00:1::2/64"))],
        [Missing("no ip"), Missing("no ip")],
    ],
    ids=["twins", "IPv6", "not paired"],
)
def test_the_label_says_what_was_found(found: Found) -> None:
    """Every HCA with its own netdev, address, MTU and subnet."""
    fabric = paired(*found)
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
    assert recorded({"hosts": {"spark1": {}}}).hosts["spark1"].hcas == ()
    assert not recorded({"hosts": {"spark1": {}}}).paired


def check(seens: Sequence[Seen], **changes: Any) -> list[Finding]:
    return list(check_set(wanted(len(seens), "ray" if len(seens) > 1 else "none", **changes), seens, pair(seens)))


def with_each(*found: Any) -> list[Seen]:
    return [seen(number, links=one) for number, one in enumerate(found, 1)]


V2 = PortGid(5, "0000:0000:0000:0000:0000:ffff:c0a8:640c", "RoCE v2")
V1 = replace(V2, index=4, kind="IB/RoCE v1")
LOCAL = PortGid(1, "fe80:0000:0000:0000:4ebb:47ff:fe2c:7a3f", "RoCE v2")


def second(**changes: Any) -> list[Seen]:
    """spark1, and a spark2 that is otherwise than it should be."""
    return [seen(1), seen(2, **changes)]


def with_hca(**changes: Any) -> list[Seen]:
    """The same with another first HCA on spark2."""
    first, *others = one_cable(2).links
    return second(links=replace(one_cable(2), links=(replace(first, **changes), *others)))


def with_sources(first: str, other: str) -> list[Seen]:
    """spark2, whose kernel sends to the subnet of each fabric address from another one."""
    by_address = {"192.168.100.12": first, "192.168.200.12": other}
    found = one_cable(2)
    netdevs = tuple(
        replace(row, sources={own.split("/")[0]: by_address.get(own.split("/")[0], "") for own in row.addresses})
        for row in found.netdevs
    )
    return second(links=replace(found, netdevs=netdevs))


def twins(number: int, mtu: int = 9000) -> Links:
    """Both in one subnet: the kernel sends from the first, and the answers come back over either."""
    one, other = f"10.0.0.{number}", f"10.0.0.{number + 9}"
    found = links(port("a", "eth1", f"{one}/24", mtu=mtu), port("b", "eth2", f"{other}/24"))
    return replace(found, netdevs=tuple(replace(row, sources={one: one, other: one}) for row in found.netdevs))


def one_twin(number: int) -> Links:
    return links(
        port("rocep1s0f0", "enp1s0f0np0", f"192.168.100.{10 + number}/24"),
        port("roceP2p1s0f0", "enP2p1s0f0np0"),
        port("rocep1s0f1", "enp1s0f1np1", state="DOWN"),
        port("", "enP7s7", f"192.168.1.{40 + number}/24", mtu=1500),
    )


def clocks(*offsets: float) -> list[Seen]:
    return [seen(number, clock=Clock(offset, 0.2, True)) for number, offset in enumerate(offsets, 1)]


SPARK2 = seen(2)
REFUSED = Missing("sudo: a password is required", "refused")
CLOSED = Firewall("-P INPUT DROP", ("-A INPUT -p tcp --dport 22 -j ACCEPT",))
OPENED = replace(CLOSED, passes=("-A INPUT -s 192.168.0.0/16 -j ACCEPT",))
PATCHED = [
    seen(number, weights=replace(SPARK2.weights, hashes={"fix.py": text * 32}))
    for number, text in ((1, "ab"), (2, "cd"))
]
DIFFERENT = "spark1 abababababab, spark2 cdcdcdcdcdcd"
NEWER = replace(seen(2, identity=identity(2, kernel="6.17")), docker=replace(SPARK2.docker, version="29.0"))
NO_PAIR = with_each(one_cable(1), links())
BARE = replace(one_cable(2), rdma_device=False)
S = f"{1:032x}"

FOUND: dict[str, tuple[list[Seen], list[str]]] = {
    "all is well": (second(), []),
    "three": ([seen(1), seen(2), seen(3)], []),
    "one host has no fabric": ([seen(1, links=links(), firewall=Missing("no"))], []),
    "a machine twice": (second(identity=identity(1)), [f"fault machine-id spark2: machine-id {S}"]),
    "two machines of one name": (second(identity=identity(2, hostname="spark1")), ["warning hostname spark2: spark1"]),
    "versions": ([seen(1), NEWER], ["note versions spark2: spark1 6.11, spark2 6.17", "note versions spark2: …"]),
    "image stores": (
        second(docker=replace(SPARK2.docker, containerd_store=True)),
        ["note image-store spark2: spark1 overlay2, spark2 containerd"],
    ),
    "an image": (
        second(image=replace(SPARK2.image, content_id="cd" * 32)),
        [f"fault image-parity spark2: {DIFFERENT}"],
    ),
    "an image's id of another store": (second(image=replace(SPARK2.image, id="sha256:other store")), []),
    "weights": (second(weights=replace(SPARK2.weights, commit="d" * 40)), ["fault weights-parity spark2: …"]),
    "a patched file": (PATCHED, [f"fault weights-parity spark2: {DIFFERENT}"]),
    "neither image nor weights": (second(image=Missing("x", "absent"), weights=Missing("x", "absent")), []),
    "clocks that nearly agree": (clocks(0.0, 5.1), []),
    "a clock ahead": (clocks(0.0, 5.3), ["warning clock spark2: +5 s from this machine's; synchronized"]),
    "a clock behind": (clocks(-60.0, 1.0), ["warning clock spark1: -60 s from this machine's; synchronized"]),
    "the operator's clock": (clocks(300.0, 301.0), ["note clock spark1: +300 s"]),
    "two clocks": (clocks(300.0, -300.0), ["warning clock spark1: …", "warning clock spark2: …"]),
    "the only clock": (clocks(300.0), ["warning clock spark1: …"]),
    "a clock that nothing keeps": (
        second(clock=Clock(-3600.4, 0.1, False)),
        ["warning clock spark2: -3600 s from this machine's; not synchronized"],
    ),
    "a slow round trip": (second(clock=Clock(12.0, 8.0, None)), []),
    "no clock": (second(clock=Missing("no")), ["unknown clock spark2: no"]),
    "MTU": (
        second(links=one_cable(2, mtu=1500)),
        [
            "fault mtu spark2: spark1 enp1s0f0np0 9000, spark2 enp1s0f0np0 1500",
            "fault mtu spark2: spark1 enP2p1s0f0np0 9000, spark2 enP2p1s0f0np0 1500",
        ],
    ),
    "MTU 1500": (with_each(one_cable(1, mtu=1500), one_cable(2, mtu=1500)), ["warning mtu spark1: …"] * 2),
    "MTU 4200": (with_each(one_cable(1, mtu=4200), one_cable(2, mtu=4200)), []),
    "MTU of the first twin in a subnet": (with_each(twins(1, 1500), twins(2)), ["fault mtu spark1: …"]),
    "twins in one subnet": (with_each(twins(1), twins(2)), []),
    "no pair": (NO_PAIR, ["fault fabric spark2: …"]),
    "no HCA": (with_each(links(), links()), ["warning fabric spark2: spark1: no HCA; spark2: no HCA"]),
    "links unread": (second(links=Missing("no sysfs")), ["unknown fabric spark2: no sysfs"]),
    "no device": (second(links=BARE), ["fault rdma-device spark2: …"]),
    "one host without the device": ([seen(1, links=BARE)], []),
    "another port": (
        second(links=one_cable(2, connector=1)),
        ["note cabling spark2: spark1 enp1s0f0np0; spark2 enp1s0f1np1"],
    ),
    "one twin": (
        with_each(one_twin(1), one_twin(2)),
        [f"warning twins spark{number}: enP2p1s0f0np0 ACTIVE, no address" for number in (1, 2)],
    ),
    "40 Gb/s": (with_hca(rate_gbps=40.0), ["warning rate spark2: 40 Gb/s"]),
    "100 Gb/s": (with_hca(rate_gbps=100.0), []),
    "no rate": (with_hca(rate_gbps=None), []),
    "the GID at whatever index": (with_hca(gids=(LOCAL, V1, V2)), []),
    "no GID for the address": (with_hca(gids=(LOCAL,)), [f"fault gid spark2: 1: {LOCAL.gid} RoCE v2"]),
    "only a GID of v1": (with_hca(gids=(LOCAL, V1)), ["fault gid spark2: …"]),
    "each subnet over its netdev": (with_sources("192.168.100.12", "192.168.200.12"), []),
    "sources not known": (with_sources("", ""), []),
    "a subnet that leaves elsewhere": (
        with_sources("192.168.1.42", "192.168.200.12"),
        ["warning route spark2: it leaves from 192.168.1.42 (enP7s7)"],
    ),
    "a firewall that speaks of no fabric": (second(firewall=CLOSED), ["warning firewall spark2: -P INPUT DROP"] * 2),
    "one that does": (second(firewall=OPENED), []),
    "one unread": (second(firewall=REFUSED), ["unknown firewall spark2: sudo: a password is required"]),
    "one that `sudo` speaks of": (second(identity=identity(2, sudo=False), firewall=REFUSED), []),
    "one unread for another reason": (
        second(identity=identity(2, sudo=False), firewall=Missing("nft: core dumped")),
        ["unknown firewall spark2: nft: core dumped"],
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_is_found(what: str) -> None:
    seens, expected = FOUND[what]
    found = check(seens)
    assert [(one.level, one.check, one.host) for one in found] == [
        tuple(row.partition(":")[0].split(" ")) for row in expected
    ]
    for one, row in zip(found, expected, strict=True):
        assert row.partition(": ")[2] in ("…", one.evidence)


@pytest.mark.parametrize("name", ["no pair", "no device", "no GID for the address"])
def test_what_keeps_rdma_away_is_no_fault_where_sockets_are_accepted(name: str) -> None:
    seens, [row] = FOUND[name]
    for changes in ({"allow_socket": True}, {"of": recipe(transport="socket")}):
        assert names(check(seens, **changes)) == [("warning", row.split(" ")[1])]


def test_remedies_name_the_end_to_look_at() -> None:
    one, other = check(with_each(one_cable(1), links_down(one_cable(2))))
    assert (one.host, other.host, one.check) == ("spark1", "spark2", "twins")
    assert one.remedy == "look at the other end of enP2p1s0f0np0: is it up, and in the same subnet?"
    assert "ip link set enP2p1s0f0np0 up" in other.remedy
    assert "ip link set enp1s0f0np0 mtu 9000" in check(FOUND["MTU"][0])[0].remedy
    assert "ufw allow in on enp1s0f0np0" in check(second(firewall=CLOSED))[0].remedy


def links_down(found: Links) -> Links:
    return replace(found, links=tuple(replace(one, state="DOWN") if "P2" in one.hca else one for one in found.links))


def test_one_address_on_two_hosts() -> None:
    found = [one for one in check(second(links=one_cable(1))) if one.check == "address"]
    assert names(found) == [("fault", "address")] * 2
    assert found[0].evidence == "192.168.100.11: spark1 enp1s0f0np0, spark2 enp1s0f0np0"


@pytest.mark.parametrize("told", [identity(2, machine_id=""), identity(2, machine_id="uninitialized"), Missing("no")])
def test_a_machine_that_does_not_say_which_it_is(told: Any) -> None:
    """Two of them are not one machine: nothing is known of either."""
    assert [(one.level, one.check, one.host) for one in check(second(identity=told))] == [
        ("fault", "machine-id", "spark2")
    ]
    both = check([seen(1, identity=told), seen(2, identity=told)])
    assert [(one.check, one.host) for one in both] == [("machine-id", "spark1"), ("machine-id", "spark2")]


def test_pings_are_as_large_as_both_ends_allow() -> None:
    fabric = pair([seen(1), seen(2, links=one_cable(2, mtu=1500))])
    asked = ping_questions(fabric, "spark1")
    assert list(asked) == [("enp1s0f0np0", "192.168.100.12"), ("enP2p1s0f0np0", "192.168.200.12")]
    words = asked["enp1s0f0np0", "192.168.100.12"].argv
    assert words[words.index("-s") + 1] == "1472"
    assert words[words.index("-I") + 1] == "enp1s0f0np0"
    assert words[-1] == "192.168.100.12"
    assert words[words.index("-M") : words.index("-M") + 2] == ("-M", "do")
    jumbo = ping_questions(pair([seen(1), seen(2)]), "spark2")["enp1s0f0np0", "192.168.100.11"].argv
    assert jumbo[jumbo.index("-s") + 1] == "8972"
    assert len(ping_questions(pair([seen(1), seen(2), seen(3)]), "spark2")) == 4
    assert ping_questions(pair([seen(1)]), "spark1") == {}
    six = with_each(links(port("a", "eth1", "fd00::1/64")), links(port("a", "eth1", "fd00::2/64")))
    [words] = [question.argv for question in ping_questions(pair(six), "spark1").values()]
    assert words[words.index("-s") + 1] == "8952"


def test_answers_of_ping() -> None:
    key = ("eth1", "10.0.0.2")
    assert list(check_pings("spark1", {key: Answer(0)})) == []
    [too_long] = check_pings("spark1", {key: Answer(1, b"", b"ping: local error: message too long, mtu=1500\n")})
    assert (too_long.level, too_long.evidence) == ("fault", "ping: local error: message too long, mtu=1500")
    [lost] = check_pings("spark1", {key: Answer(1, b"PING x\n1 packets transmitted, 0 received\n")})
    assert lost.evidence == "1 packets transmitted, 0 received"
    [hung] = check_pings("spark1", {key: Answer(None)})
    assert (hung.level, hung.evidence) == ("fault", "no answer")
    [absent] = check_pings("spark1", {key: Answer(127), ("eth2", "x"): Answer(127)})
    assert absent.level == "unknown"
