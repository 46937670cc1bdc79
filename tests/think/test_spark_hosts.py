"""Checks over the set of hosts: what must be equal, and the fabric between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from plan_tools import identity, links, names, one_cable, port, recipe, seen, wanted

from cluster.argv.question import Answer
from cluster.spark.clock import Clock
from cluster.spark.fabric import check_pings, pair, ping_questions
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding
from cluster.spark.look import Seen, check_set


def check(seens: Sequence[Seen], **changes: Any) -> list[Finding]:
    of = wanted(len(seens), "ray" if len(seens) > 1 else "none", **changes)
    return list(check_set(of, seens, pair(seens)))


def with_links(*found: Any) -> list[Seen]:
    return [seen(number, links=one) for number, one in enumerate(found, 1)]


def test_all_is_well() -> None:
    assert check([seen(1), seen(2)]) == []
    assert check([seen(1), seen(2), seen(3)]) == []


def test_one_host_has_no_fabric_to_check() -> None:
    assert check(with_links(links())) == []


def test_one_machine_under_two_names() -> None:
    [fault] = check([seen(1), seen(2, identity=identity(1))])
    assert (fault.level, fault.check, fault.host) == ("fault", "machine-id", "spark2")
    three = [seen(1), seen(2, identity=identity(1)), seen(3, identity=identity(1))]
    [fault] = check(three)
    assert fault.what.startswith("spark1 and spark2 and spark3")


@pytest.mark.parametrize("told", [identity(2, machine_id=""), identity(2, machine_id="uninitialized"), Missing("no")])
def test_a_machine_that_does_not_say_which_it_is(told: Any) -> None:
    """Two of them are not one machine: nothing is known of either."""
    [fault] = check([seen(1), seen(2, identity=told)])
    assert (fault.level, fault.check, fault.host) == ("fault", "machine-id", "spark2")
    both = check([seen(1, identity=told), seen(2, identity=told)])
    assert [(one.check, one.host) for one in both] == [("machine-id", "spark1"), ("machine-id", "spark2")]


def clocks(*offsets: float) -> list[Seen]:
    return [seen(number, clock=Clock(offset, 0.2, True)) for number, offset in enumerate(offsets, 1)]


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ((0.0, 5.1), []),
        ((0.0, 5.3), [("warning", "clock")]),
        ((-60.0, 1.0), [("warning", "clock")]),
        ((300.0, 301.0), [("note", "clock")]),
        ((300.0, -300.0), [("warning", "clock")] * 2),
        ((300.0,), [("warning", "clock")]),
    ],
)
def test_clocks(offsets: tuple[float, ...], expected: list[tuple[str, str]]) -> None:
    """A host that is wrong is named; when all agree, it is the operator's clock that differs."""
    assert names(check(clocks(*offsets))) == expected


def test_a_clock_says_how_wrong_it_is_and_whether_it_is_kept() -> None:
    late = seen(2, clock=Clock(-3600.4, 0.1, False))
    [warning] = check([seen(1), late])
    assert (warning.host, warning.evidence) == ("spark2", "-3600 s from this machine's; not synchronized")
    assert names(check([seen(1), seen(2, clock=Missing("no"))])) == [("unknown", "clock")]


def test_a_slow_round_trip_is_no_wrong_clock() -> None:
    assert check([seen(1), seen(2, clock=Clock(12.0, 8.0, None))]) == []


def test_two_machines_of_one_name() -> None:
    [warning] = check([seen(1), seen(2, identity=identity(2, hostname="spark1"))])
    assert (warning.level, warning.check, warning.evidence) == ("warning", "hostname", "spark1")


def test_versions_that_differ_are_noted() -> None:
    newer = seen(2, identity=identity(2, kernel="6.17"), docker=replace(seen().docker, version="29.0"))
    found = check([seen(1), newer])
    assert names(found) == [("note", "versions")] * 2
    assert found[0].evidence == "spark1 6.11, spark2 6.17"
    blind = check([seen(1), replace(newer, identity=Missing("no"), docker=Missing("no"))])
    assert names(blind) == [("fault", "machine-id")]


def test_one_image_in_two_stores_is_noted_and_no_fault() -> None:
    """The content is compared, so that ids may differ."""
    other = seen(2, docker=replace(seen().docker, containerd_store=True))
    [note] = check([seen(1), other])
    assert (note.level, note.check, note.evidence) == ("note", "image-store", "spark1 overlay2, spark2 containerd")


def test_images_and_weights_must_be_equal() -> None:
    first, second = seen(1), seen(2)
    other_image = replace(second, image=replace(second.image, content_id="cd" * 32))
    [fault] = check([first, other_image])
    assert (fault.level, fault.check) == ("fault", "image-parity")
    assert fault.evidence == "spark1 abababababab, spark2 cdcdcdcdcdcd"
    other_id = replace(second, image=replace(second.image, id="sha256:other store"))
    assert check([first, other_id]) == []
    other_weights = replace(second, weights=replace(second.weights, commit="d" * 40))
    assert names(check([first, other_weights])) == [("fault", "weights-parity")]
    patched = [
        replace(one, weights=replace(one.weights, hashes={"fix.py": text}))
        for one, text in ((first, "ab" * 32), (second, "cd" * 32))
    ]
    [finding] = check(patched)
    assert (finding.check, finding.what) == ("weights-parity", "the hosts have different copies of fix.py")
    assert finding.evidence == "spark1 abababababab, spark2 cdcdcdcdcdcd"
    absent = replace(second, image=Missing("x", "absent"), weights=Missing("x", "absent"))
    assert check([first, absent]) == []


def test_mtu_that_differs_is_a_fault_and_1500_a_warning() -> None:
    [first, second] = check(with_links(one_cable(1), one_cable(2, mtu=1500)))
    assert (first.level, first.check, first.host) == ("fault", "mtu", "spark2")
    assert first.evidence == "spark1 enp1s0f0np0 9000, spark2 enp1s0f0np0 1500"
    assert "ip link set enp1s0f0np0 mtu 9000" in first.remedy
    assert second.evidence == "spark1 enP2p1s0f0np0 9000, spark2 enP2p1s0f0np0 1500"
    assert names(check(with_links(one_cable(1, mtu=1500), one_cable(2, mtu=1500)))) == [("warning", "mtu")] * 2
    assert check(with_links(one_cable(1, mtu=4200), one_cable(2, mtu=4200))) == []


def test_mtu_of_each_twin_on_one_subnet() -> None:
    """The first twin of a subnet counts as the last does."""

    def twins(number: int, mtu: int) -> Any:
        return links(port("a", "eth1", f"10.0.0.{number}/24", mtu=mtu), port("b", "eth2", f"10.0.0.{number + 9}/24"))

    [fault] = check(with_links(twins(1, 1500), twins(2, 9000)))
    assert (fault.level, fault.host) == ("fault", "spark1")
    assert "set eth1 mtu" in fault.remedy


def test_no_pair_is_a_fault_where_rdma_was_to_be_had() -> None:
    hosts = with_links(one_cable(1), links())
    assert names(check(hosts)) == [("fault", "fabric")]
    assert names(check(hosts, allow_socket=True)) == [("warning", "fabric")]
    assert names(check(hosts, recipe=recipe(transport="socket"))) == [("warning", "fabric")]
    assert names(check(with_links(links(), links()))) == [("warning", "fabric")]


def test_links_that_could_not_be_read_are_told() -> None:
    [finding] = check(with_links(one_cable(1), Missing("sysfs is not there")))
    assert (finding.level, finding.check, finding.host) == ("unknown", "fabric", "spark2")
    assert finding.evidence == "sysfs is not there"


def test_hcas_without_the_device() -> None:
    def bare(number: int) -> Any:
        return replace(one_cable(number), rdma_device=False)

    hosts = with_links(one_cable(1), bare(2))
    [fault] = check(hosts)
    assert (fault.level, fault.check, fault.host) == ("fault", "rdma-device", "spark2")
    assert names(check(hosts, allow_socket=True)) == [("warning", "rdma-device")]
    assert check(with_links(bare(1))) == []


# pings


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


def test_pings_go_to_every_peer_over_every_link() -> None:
    assert len(ping_questions(pair([seen(1), seen(2), seen(3)]), "spark2")) == 4
    assert ping_questions(pair([seen(1)]), "spark1") == {}
    six = with_links(links(port("a", "eth1", "fd00::1/64")), links(port("a", "eth1", "fd00::2/64")))
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


def one_twin(number: int) -> Any:
    return links(
        port("rocep1s0f0", "enp1s0f0np0", f"192.168.100.{10 + number}/24"),
        port("roceP2p1s0f0", "enP2p1s0f0np0"),
        port("rocep1s0f1", "enp1s0f1np1", state="DOWN"),
        port("", "enP7s7", f"192.168.1.{40 + number}/24", mtu=1500),
    )


def test_one_twin_of_a_port_is_half_the_bandwidth() -> None:
    found = check(with_links(one_twin(1), one_twin(2)))
    assert names(found) == [("warning", "twins"), ("warning", "twins")]
    assert found[0].what == "only enp1s0f0np0 of its port faces the peers: half the bandwidth"
    assert found[0].evidence == "enP2p1s0f0np0 ACTIVE, no address"
    assert check(with_links(one_cable(1), one_cable(2))) == []
