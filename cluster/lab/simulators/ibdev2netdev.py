#!/usr/bin/python3 -IS
"""ibdev2netdev of a simulated Spark, from the simulated RDMA tree and the real netdevs."""

import os
import sys

TREE = "/sys/class/infiniband"


def main(words: list[str]) -> None:
    """One line a port; words are ignored."""
    for hca in sorted(os.listdir(TREE)):
        for netdev in os.listdir(f"{TREE}/{hca}/device/net"):
            with open(f"{TREE}/{hca}/ports/1/state") as file:
                up = "ACTIVE" in file.read()
            print(f"{hca} port 1 ==> {netdev} ({'Up' if up else 'Down'})")


if __name__ == "__main__":
    main(sys.argv[1:])
