import ipaddress
import subprocess
from pathlib import Path
from typing import Any

from facts_tools import put, run_far, said

from cluster.spark import links
from cluster.spark.fact import Missing
from cluster.spark.links import Link, Links, Netdev

TWINS = {
    "rocep1s0f0": "enp1s0f0np0",
    "rocep1s0f1": "enp1s0f1np1",
    "roceP2p1s0f0": "enP2p1s0f0np0",
    "roceP2p1s0f1": "enP2p1s0f1np1",
}
RIGHT_PORT = {"rocep1s0f1", "roceP2p1s0f1"}
ADDRESSES = {"enp1s0f1np1": ["192.168.100.11/24"], "enP2p1s0f1np1": ["192.168.101.11/24"]}


def put_netdev(root: Path, name: str, *, mtu: int = 9000, operstate: str = "up", speed: str = "200000") -> None:
    told = {"mtu": mtu, "operstate": operstate, "speed": speed, "statistics/rx_bytes": 10, "statistics/tx_bytes": 20}
    put(root, {f"sys/class/net/{name}/{file}": f"{value}\n" for file, value in told.items()})


def put_hca(root: Path, hca: str, netdev: str, *, active: bool = True, rate: str = "200 Gb/sec (4X HDR)") -> None:
    told = {"state": "4: ACTIVE" if active else "1: DOWN", "rate": rate}
    told |= {"counters/port_xmit_data": "1000", "counters/port_rcv_data": "250"}
    put(root, {f"sys/class/infiniband/{hca}/ports/1/{file}": f"{value}\n" for file, value in told.items()})
    if netdev:
        put(root, {f"sys/class/infiniband/{hca}/device/net/{netdev}/ifindex": "4\n"})


def put_spark(root: Path, *, cabled: set[str], rate: str = "200 Gb/sec (4X HDR)") -> None:
    put_netdev(root, "lo", operstate="unknown")
    put_netdev(root, "enP7s7", mtu=1500, speed="10000")
    for hca, netdev in TWINS.items():
        up = hca in cabled
        put_netdev(root, netdev, operstate="up" if up else "down", speed="200000" if up else "-1")
        put_hca(root, hca, netdev, active=up, rate=rate if up else "40 Gb/sec (4X QDR)")
    put(root, {"sys/class/net/bonding_masters": "\n", "dev/infiniband/uverbs0": ""})


def look(root: Path, addresses: dict[str, list[str]], *, gids: bool = False) -> Links:
    found = links.parse(run_far("links", {"root": f"{root}/", "addresses": addresses, "gids": gids}))
    assert isinstance(found, Links), found
    return found


def test_one_cable_in_the_right_port(tmp_path: Path) -> None:
    put_spark(tmp_path, cabled=RIGHT_PORT)
    found = look(tmp_path, ADDRESSES)
    assert [link.hca for link in found.links] == ["roceP2p1s0f0", "roceP2p1s0f1", "rocep1s0f0", "rocep1s0f1"]
    assert {link.hca for link in found.links if link.is_active} == RIGHT_PORT
    address = ("192.168.100.11/24",)
    assert found.links[3] == Link("rocep1s0f1", "enp1s0f1np1", "ACTIVE", 200.0, 9000, address, "up", 4000, 1000)
    assert found.links[2].state == "DOWN"
    assert found.rdma_device
    assert found.netdevs[0] == Netdev("enP2p1s0f0np0", 9000, "down", (), 10, 20)
    assert "lo" not in [netdev.name for netdev in found.netdevs]


def test_two_cables_and_the_other_firmwares_rate(tmp_path: Path) -> None:
    put_spark(tmp_path, cabled=set(TWINS), rate="100 Gb/sec (4X EDR)")
    put(tmp_path, {"sys/class/infiniband/rocep1s0f1/fw_ver": "28.45.4028\n"})
    found = look(tmp_path, ADDRESSES)
    assert [link.firmware for link in found.links] == ["", "", "", "28.45.4028"]
    assert [(link.state, link.rate_gbps) for link in found.links] == [("ACTIVE", 100.0)] * 4
    assert [link.addresses for link in found.links].count(()) == 2


def test_no_sysfs_and_no_rdma_at_all(tmp_path: Path) -> None:
    assert links.parse(run_far("links", {"root": f"{tmp_path}/", "addresses": {}})).kind == "absent"
    put_netdev(tmp_path, "eth0", mtu=1500)
    found = look(tmp_path, {"eth0": ["10.0.0.1/24"]})
    assert found == Links((), (Netdev("eth0", 1500, "up", ("10.0.0.1/24",), 10, 20),), False)


def test_hcas_without_a_netdev_and_without_counters(tmp_path: Path) -> None:
    """Unknown, and not zero."""
    put_netdev(tmp_path, "eth0")
    put_hca(tmp_path, "mlx5_0", "")
    put(tmp_path, {"sys/class/infiniband/mlx5_1/ports/1/state": "4: ACTIVE\n"})
    link, bare = look(tmp_path, {}).links
    assert (link.netdev, link.mtu, link.operstate, link.addresses) == ("", None, "", ())
    assert (bare.xmit_bytes, bare.rcv_bytes, bare.rate_gbps) == (None, None, None)


def put_upper(root: Path, lower: str, upper: str, kind: str) -> None:
    put_netdev(root, upper)
    put(root, {f"sys/class/net/{upper}/uevent": f"DEVTYPE={kind}\n", f"sys/class/net/{lower}/upper_{upper}": ""})


def test_a_bond_carries_the_addresses_of_its_netdevs(tmp_path: Path) -> None:
    put_spark(tmp_path, cabled=RIGHT_PORT)
    for lower in ADDRESSES:
        put_upper(tmp_path, lower, "bond0", "bond")
    found = look(tmp_path, {"bond0": ["192.168.100.11/24"]})
    assert {link.netdev for link in found.links if link.is_active} == {"bond0"}
    assert found.links[3].addresses == ("192.168.100.11/24",)


def test_a_vlan_on_a_bond_is_found_and_a_bridge_is_not(tmp_path: Path) -> None:
    put_netdev(tmp_path, "enp1")
    put_hca(tmp_path, "mlx5_0", "enp1")
    put_upper(tmp_path, "enp1", "bond0", "bond")
    put_upper(tmp_path, "bond0", "bond0.7", "vlan")
    put_upper(tmp_path, "enp1", "br0", "bridge")
    assert look(tmp_path, {"bond0.7": ["10.7.0.1/24"], "br0": ["10.8.0.1/24"]}).links[0].netdev == "bond0.7"


def test_the_kernels_addresses_are_those_ip_tells() -> None:
    found = links.parse(run_far("links", {}))
    told = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in told.splitlines()]
    expected = {(row[1], row[3]) for row in rows if row[1] != "lo" and row[2] in ("inet", "inet6")}
    assert {(netdev.name, address) for netdev in found.netdevs for address in netdev.addresses} == expected
    own = {address.split("/")[0] for _, address in expected}
    assert {source for netdev in found.netdevs for source in netdev.sources.values()} <= own


def reply(addresses: list[str]) -> dict[str, Any]:
    netdev = {"name": "eth0", "mtu": 1500, "operstate": "up", "addresses": addresses, "rx_bytes": 0, "tx_bytes": 0}
    return {"links": {"value": {"links": [], "netdevs": [netdev]}}}


def test_subnets_leave_out_what_is_everywhere() -> None:
    found = links.parse(said(reply(["169.254.35.62/16", "fe80::1/64", "fd00::5/64", "169.254.1.1/16"])))
    assert links.subnets(found.netdevs[0].addresses) == (
        ipaddress.ip_network("169.254.0.0/16"),
        ipaddress.ip_network("fd00::/64"),
    )
    assert isinstance(links.parse(said(reply(["192.168.100.300/24"]))), Missing)


def test_gid_tables_when_they_are_asked_for(tmp_path: Path) -> None:
    """Empty entries are left out (their kind cannot even be read), and the index is a number, not a word."""
    put_spark(tmp_path, cabled=RIGHT_PORT)
    table = {
        0: ("fe80:0000:0000:0000:4ebb:47ff:fe2a:9d3c", "IB/RoCE v1"),
        1: ("0000:" * 7 + "0000", ""),
        4: ("0000:0000:0000:0000:0000:ffff:c0a8:640b", "IB/RoCE v1"),
        10: ("0000:0000:0000:0000:0000:ffff:c0a8:640b", "RoCE v2"),
    }
    for index, (gid, kind) in table.items():
        port = "sys/class/infiniband/rocep1s0f1/ports/1"
        put(tmp_path, {f"{port}/gids/{index}": f"{gid}\n"})
        if kind:
            put(tmp_path, {f"{port}/gid_attrs/types/{index}": kind})
    (link,) = [one for one in look(tmp_path, ADDRESSES, gids=True).links if one.hca == "rocep1s0f1"]
    assert [row.index for row in link.gids] == [0, 4, 10]
    assert link.gid_index("192.168.100.11") == 10
    assert link.gid_index("192.168.100.12") is None
    assert {one.gids for one in look(tmp_path, ADDRESSES).links} == {()}


def test_where_packets_to_a_subnet_leave_from(tmp_path: Path) -> None:
    put_spark(tmp_path, cabled=RIGHT_PORT)
    sources = {"192.168.100.11/24": "192.168.1.41", "192.168.101.11/24": "192.168.101.11"}
    answer = run_far("links", {"root": f"{tmp_path}/", "addresses": ADDRESSES, "sources": sources})
    found = links.parse(answer)
    told = {netdev.name: netdev.sources for netdev in found.netdevs}
    assert told["enp1s0f1np1"] == {"192.168.100.11": "192.168.1.41"}
    assert told["enP2p1s0f1np1"] == {"192.168.101.11": "192.168.101.11"}
    assert told["enP7s7"] == {}


def test_twins_have_one_port() -> None:
    assert links.port_of("enp1s0f0np0") == links.port_of("enP2p1s0f0np0")
    assert links.port_of("enp1s0f0np0") != links.port_of("enp1s0f1np1")
    assert links.port_of("enP7s7") == "enP7s7"
