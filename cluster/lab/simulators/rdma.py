#!/usr/bin/python3 -IS
"""rdma of a simulated Spark: `rdma link`, also with -j, from the simulated RDMA tree."""

import json
import os
import sys

TREE = "/sys/class/infiniband"
PHYSICAL = {"5: LinkUp": "LINK_UP", "3: Disabled": "DISABLED", "2: Polling": "POLLING"}


def read(path: str) -> str:
    """A file of the tree."""
    with open(f"{TREE}/{path}") as file:
        return file.read().strip()


def main(words: list[str]) -> None:
    """`link`, as text or JSON: a row for each port."""
    if [word for word in words if not word.startswith("-")][:1] != ["link"]:
        sys.exit(f"rdma of the lab knows `link`, not {' '.join(words)!r}")
    rows = []
    for index, hca in enumerate(sorted(os.listdir(TREE))):
        state = read(f"{hca}/ports/1/state").partition(": ")[2]
        physical = PHYSICAL.get(read(f"{hca}/ports/1/phys_state"), "NOP")
        port = {"ifindex": index, "ifname": hca, "port": 1, "netdev": os.listdir(f"{TREE}/{hca}/device/net")[0]}
        rows.append({**port, "state": state, "physical_state": physical})
    if any(word in ("-j", "-jp", "--json") for word in words):
        print(json.dumps(rows))
        return
    for row in rows:
        state = f"state {row['state']} physical_state {row['physical_state']} netdev {row['netdev']}"
        print(f"link {row['ifname']}/1 {state} ")


if __name__ == "__main__":
    main(sys.argv[1:])
