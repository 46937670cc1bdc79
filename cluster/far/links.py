"""HCAs and netdevs of this host, from sysfs and `ip address`.

Given {"root": "/", "gids": false, "addresses": {netdev: ["192.168.100.11/24"]}}: `root` is where sys/, proc/ and dev/
are; with `gids` the GID tables are read too (hundreds of files an HCA, most of them empty); `addresses`, when given,
replaces the kernel's list, and "sources" its routing.
Prints {"links": {"value": …} | {"missing": why, "kind": …}}.
"""

import ipaddress
import json
import os
import re
import socket
from contextlib import suppress

from cluster.far.prelude import Json, emit, finish, given, read_text_if, section, start

MOST = 1 << 20  # bytes of an answer of ip's


def number_in(path: str) -> int | None:
    """A file's decimal number, None when there is none."""
    text = read_text_if(path)
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else None


def names_in(path: str) -> list[str]:
    """The sorted names in a directory, none when it is not there."""
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def look_links(wanted: dict[str, Json]) -> Json:
    root, addresses, sources = wanted["root"], wanted.get("addresses"), wanted.get("sources", {})
    if addresses is None:
        addresses = kernel_addresses()
        sources = {own: source_towards(own) for found in addresses.values() for own in found if "." in own}
    net, hcas = f"{root}sys/class/net", f"{root}sys/class/infiniband"
    netdevs = [name for name in sorted(os.listdir(net)) if name != "lo" and os.path.isdir(f"{net}/{name}")]
    rows = [netdev_row(net, name, addresses.get(name, []), sources) for name in netdevs]
    return {
        "links": [link_row(f"{hcas}/{name}", net, addresses, wanted["gids"]) for name in names_in(hcas)],
        "netdevs": [row for row in rows if row["mtu"] is not None],
        "rdma_device": os.path.isdir(f"{root}dev/infiniband"),
    }


def netdev_row(net: str, name: str, addresses: list[str], sources: dict[str, str]) -> dict[str, Json]:
    return {
        "name": name,
        "mtu": number_in(f"{net}/{name}/mtu"),
        "operstate": read_text_if(f"{net}/{name}/operstate"),
        "addresses": addresses,
        "sources": {own.partition("/")[0]: sources[own] for own in addresses if sources.get(own)},
        "rx_bytes": number_in(f"{net}/{name}/statistics/rx_bytes") or 0,
        "tx_bytes": number_in(f"{net}/{name}/statistics/tx_bytes") or 0,
    }


def link_row(hca: str, net: str, addresses: dict[str, list[str]], with_gids: bool) -> dict[str, Json]:
    port = f"{hca}/ports/1"
    netdev = netdev_of(f"{hca}/device/net", net, addresses)
    rate = re.match(r"[0-9.]+", read_text_if(f"{port}/rate"))
    sent, received = (number_in(f"{port}/counters/port_{way}_data") for way in ("xmit", "rcv"))  # in units of 4 bytes
    return {
        "hca": os.path.basename(hca),
        "firmware": read_text_if(f"{hca}/fw_ver"),
        "netdev": netdev,
        "state": read_text_if(f"{port}/state").rpartition(":")[2].strip(),
        "rate_gbps": float(rate[0]) if rate else None,
        "mtu": number_in(f"{net}/{netdev}/mtu") if netdev else None,
        "addresses": addresses.get(netdev, []),
        "operstate": read_text_if(f"{net}/{netdev}/operstate") if netdev else "",
        "xmit_bytes": None if sent is None else sent * 4,
        "rcv_bytes": None if received is None else received * 4,
        "gids": gid_rows(port) if with_gids else [],
    }


def gid_rows(port: str) -> list[dict[str, Json]]:
    """The entries of a GID table that are in use, by index."""
    rows = []
    for index in sorted(map(int, names_in(f"{port}/gids"))):
        if (gid := read_text_if(f"{port}/gids/{index}")).strip("0:"):
            rows.append({"index": index, "gid": gid, "kind": read_text_if(f"{port}/gid_attrs/types/{index}")})
    return rows


def netdev_of(below: str, net: str, addresses: dict[str, list[str]]) -> str:
    """The netdev that carries an HCA's addresses: its own, or the bond or VLAN on top of it."""
    found = names_in(below)
    for name in found:
        for upper in (entry[6:] for entry in names_in(f"{net}/{name}") if entry.startswith("upper_")):
            kind = read_text_if(f"{net}/{upper}/uevent")
            found += [upper] if upper not in found and re.search("DEVTYPE=(bond|vlan)", kind) else []
    return next((name for name in found if addresses.get(name)), found[0] if found else "")


def kernel_addresses() -> dict[str, list[str]]:
    """{netdev: ["192.168.100.11/24", …]} of this network namespace, as `ip` prints them."""
    code, out, err = finish(start("ip", "-json", "address"), MOST)
    if code:
        raise OSError(f"ip -json address: {err.strip() or code}")
    return {
        row["ifname"]: [f"{one['local']}/{one['prefixlen']}" for one in row["addr_info"]]
        for row in json.loads(out)
        if row.get("addr_info")
    }


def source_towards(own: str) -> str:
    """The address that packets to another host in the subnet of "192.168.100.11/24" leave from, "" for nowhere.

    The kernel routes a connected UDP socket, by whatever tables and rules it has; nothing is sent.
    """
    interface = ipaddress.ip_interface(own)
    other = next((str(host) for host in interface.network.hosts() if host != interface.ip), None)
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if other:
            probe.connect((other, 9))
            return str(probe.getsockname()[0])
    return ""


if __name__ == "__main__":
    emit({"links": section(look_links, {"root": "/", "gids": False, **given()})})
