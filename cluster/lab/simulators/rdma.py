#!/usr/bin/python3 -IS
"""rdma of a simulated Spark: `rdma link`, `rdma dev`, also with -j, from the simulated RDMA tree."""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

TREE = "/sys/class/infiniband"
PHYSICAL = {"5: LinkUp": "LINK_UP", "3: Disabled": "DISABLED", "2: Polling": "POLLING"}


def read(path: str) -> str:
    """A file of the tree."""
    with open(f"{TREE}/{path}") as file:
        return file.read().strip()


def links() -> Iterator[dict[str, Any]]:
    """One mapping a port."""
    for index, hca in enumerate(sorted(os.listdir(TREE))):
        state = read(f"{hca}/ports/1/state").partition(": ")[2]
        physical = PHYSICAL.get(read(f"{hca}/ports/1/phys_state"), "NOP")
        netdev = os.listdir(f"{TREE}/{hca}/device/net")[0]
        port = {"ifindex": index, "ifname": hca, "port": 1, "netdev": netdev}
        yield {**port, "state": state, "physical_state": physical}


def devices() -> Iterator[dict[str, Any]]:
    """One mapping an HCA."""
    for index, hca in enumerate(sorted(os.listdir(TREE))):
        yield {"ifindex": index, "ifname": hca, "node_type": "ca", "fw": read(f"{hca}/fw_ver")}


def main(words: list[str]) -> None:
    """`link` or `dev`, as text or JSON."""
    objects = [word for word in words if not word.startswith("-")]
    kind = objects[0] if objects else ""
    if not kind or not ("link".startswith(kind) or "dev".startswith(kind)):
        print(f"rdma of the lab knows `link` and `dev`, not {' '.join(words)!r}", file=sys.stderr)
        sys.exit(1)
    link = "link".startswith(kind)
    rows = list(links() if link else devices())
    if any(word in ("-j", "-jp", "--json") for word in words):
        print(json.dumps(rows))
    for row in [] if any(word.startswith(("-j", "--json")) for word in words) else rows:
        if link:
            state = f"state {row['state']} physical_state {row['physical_state']} netdev {row['netdev']}"
            print(f"link {row['ifname']}/1 {state} ")
        else:
            print(f"{row['ifindex']}: {row['ifname']}: node_type ca fw {row['fw']} ")


if __name__ == "__main__":
    main(sys.argv[1:])
