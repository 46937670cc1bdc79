"""Findings that several hosts share."""

from __future__ import annotations

from cluster.spark.finding import Finding, Shared, share


def test_the_same_on_several_hosts_is_said_once() -> None:
    def docker(host: str, why: str = "no daemon") -> Finding:
        return Finding("fault", "docker", host, "Docker cannot be used", why, f"on {host}: systemctl start docker")

    other = Finding("warning", "mtu", "a", "1500", "", "on a: ip link")
    first, second, third = share([docker("a"), other, docker("b"), docker("a"), docker("c", "refused")])
    assert (first.hosts, first.finding.remedy, first.finding.host) == (
        ("a", "b"),
        "on each: systemctl start docker",
        "",
    )
    assert second == Shared(Finding("warning", "mtu", "", "1500", "", "on a: ip link"), ("a",))
    assert (third.hosts, third.finding.remedy) == (("c",), "on c: systemctl start docker")
    assert share([]) == []
