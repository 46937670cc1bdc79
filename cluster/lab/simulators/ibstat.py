#!/usr/bin/python3 -IS
"""ibstat of a simulated Spark, from the simulated RDMA tree."""

import os
import sys

TREE = "/sys/class/infiniband"


def read(path: str) -> str:
    """A file of the tree."""
    with open(f"{TREE}/{path}") as file:
        return file.read().strip()


def show(hca: str) -> None:
    """One HCA as ibstat prints it."""
    state = read(f"{hca}/ports/1/state").partition(": ")[2].capitalize()
    physical = read(f"{hca}/ports/1/phys_state").partition(": ")[2]
    guid = "0x" + read(f"{hca}/ports/1/gids/0").replace(":", "")[16:]
    rate = read(f"{hca}/ports/1/rate").partition(" ")[0]
    print(f"CA '{hca}'\n\tCA type: {read(f'{hca}/hca_type')} (simulated)\n\tNumber of ports: 1")
    print(f"\tFirmware version: {read(f'{hca}/fw_ver')}\n\tHardware version: 0\n\tNode GUID: {guid}")
    print(f"\tSystem image GUID: {guid}\n\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: {physical}")
    print(f"\t\tRate: {rate}\n\t\tBase lid: 0\n\t\tLMC: 0\n\t\tSM lid: 0\n\t\tCapability mask: 0x00010000")
    print(f"\t\tPort GUID: {guid}\n\t\tLink layer: Ethernet")


def main(words: list[str]) -> None:
    """All HCAs, those named, or with -l their names."""
    names = sorted(os.listdir(TREE))
    if "-l" in words:
        print("\n".join(names))
        return
    for name in names:
        if name in words or not words:
            show(name)


if __name__ == "__main__":
    main(sys.argv[1:])
