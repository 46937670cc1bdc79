"""HCAs and netdevs of this host, from sysfs and the kernel's own address list.

Given {"root": "/", "gids": false, "addresses": {netdev: ["192.168.100.11/24"]}}: `root` is where sys/, proc/ and dev/
are; with `gids` the GID tables are read too (hundreds of files an HCA, most of them empty); `addresses`, when given,
stands in for the kernel's list, and "sources" for its routing.
Prints {"links": {"value": …} | {"missing": why, "kind": …}}.
"""

import os
import re
import socket
import struct
from collections.abc import Iterator

from cluster.far.prelude import Json, emit, given, read_text_if, section


def number_in(path: str) -> int | None:
    """A file's decimal number, None when there is none."""
    text = read_text_if(path)
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else None


def names_in(path: str) -> list[str]:
    """The sorted names in a directory, none when it is not there."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


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
    rows = ((index, read_text_if(f"{port}/gids/{index}")) for index in sorted(map(int, names_in(f"{port}/gids"))))
    return [
        {"index": index, "gid": gid, "kind": read_text_if(f"{port}/gid_attrs/types/{index}")}
        for index, gid in rows
        if gid.strip("0:")
    ]


def netdev_of(below: str, net: str, addresses: dict[str, list[str]]) -> str:
    """The netdev that carries an HCA's addresses: its own, or the bond or VLAN on top of it."""
    found = names_in(below)
    for name in found:
        for upper in (entry[6:] for entry in names_in(f"{net}/{name}") if entry.startswith("upper_")):
            kind = read_text_if(f"{net}/{upper}/uevent")
            found += [upper] if upper not in found and re.search("DEVTYPE=(bond|vlan)", kind) else []
    return next((name for name in found if addresses.get(name)), found[0] if found else "")


def kernel_addresses() -> dict[str, list[str]]:
    """{netdev: ["192.168.100.11/24", …]} of this network namespace, asked with rtnetlink(7): RTM_GETADDR, a dump."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(2)
        kernel.bind((0, 0))
        kernel.send(struct.pack("=IHHIIBBBBI", 24, 22, 0x301, 1, 0, 0, 0, 0, 0, 0))
        for kind, body in messages(kernel):
            family, length, _, _, index = struct.unpack_from("=BBBBI", body)
            values = attributes(body[8:])
            address = values.get(2) or values.get(1)  # IFA_LOCAL, else IFA_ADDRESS
            if kind == 20 and address and family in (socket.AF_INET, socket.AF_INET6):
                text = f"{socket.inet_ntop(family, address)}/{length}"
                found.setdefault(socket.if_indextoname(index), []).append(text)
    return found


def source_towards(own: str) -> str:
    """The address that packets to another host in the subnet of "192.168.100.11/24" leave from, "" for nowhere.

    The kernel routes a connected UDP socket, by whatever tables and rules it has; nothing is sent.
    """
    address, _, length = own.partition("/")
    number, bits = struct.unpack("!I", socket.inet_aton(address))[0], 32 - int(length)
    others = (number ^ 1, number ^ 2, number ^ 3)
    other = next((one for one in others if bits == 1 or 0 < one % (1 << bits) < (1 << bits) - 1), None)
    if not bits or other is None:
        return ""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.inet_ntoa(struct.pack("!I", other)), 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def messages(kernel: socket.socket) -> Iterator[tuple[int, bytes]]:
    """(type, body) of each netlink message until the dump is done."""
    while True:
        data = kernel.recv(1 << 16)
        while len(data) >= 16:
            length, kind = struct.unpack_from("=IH", data)
            if kind == 3:  # NLMSG_DONE
                return
            if kind == 2:  # NLMSG_ERROR
                raise OSError(-struct.unpack_from("=i", data, 16)[0], "netlink: RTM_GETADDR")
            yield kind, data[16:length]
            data = data[(length + 3) & ~3 :]


def attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        found[kind] = data[4:length]
        data = data[max(4, (length + 3) & ~3) :]
    return found


if __name__ == "__main__":
    emit({"links": section(look_links, {"root": "/", "gids": False, **given()})})
