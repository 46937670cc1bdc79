"""GID tables from what people paste: `ibv_devinfo -v` (or rdma's sysfs listing) and Mellanox's `show_gids`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DEVINFO = re.compile(
    r"^[ \t]*GID\[[ \t]*(?P<index>\d+)\]:[ \t]+(?P<gid>[0-9a-fA-F:.]+)(?:,[ \t]*(?P<kind>[\w/ ]+v[12]))?", re.MULTILINE
)
_HCA = re.compile(r"^hca_id:[ \t]*(\S+)", re.MULTILINE)
_SHOW = re.compile(
    r"^(?P<hca>[\w.-]+)[ \t]+(?P<port>\d+)[ \t]+(?P<index>\d+)[ \t]+(?P<gid>[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){7})[ \t]+"
    r"(?P<ip>\d+\.\d+\.\d+\.\d+)?[ \t]*(?P<kind>v[12])\b",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry. `hca` is empty where the text does not say; `ipv4` is the address inside, empty for another kind."""

    hca: str
    index: int
    ipv4: str
    is_v2: bool


def recognise(text: str) -> tuple[Gid, ...] | None:
    """Every entry of every table in a text, None when there is none."""
    starts = [(found.start(), found[1]) for found in _HCA.finditer(text)]
    gids = []
    for row in _DEVINFO.finditer(text):
        hca = next((name for start, name in reversed(starts) if start < row.start()), "")
        gids.append(Gid(hca, int(row["index"]), mapped_ipv4(row["gid"]), "v2" in (row["kind"] or "")))
    for row in _SHOW.finditer(text):
        gids.append(Gid(row["hca"], int(row["index"]), mapped_ipv4(row["gid"]), row["kind"] == "v2"))
    return tuple(gids) or None


def mapped_ipv4(gid: str) -> str:
    """The IPv4 address in ::ffff:192.168.100.10 or 0000:…:ffff:c0a8:640a, empty for other GIDs."""
    dotted = re.search(r"ffff:(\d+\.\d+\.\d+\.\d+)$", gid)
    if dotted:
        return dotted[1]
    words = gid.lower().split(":")
    if len(words) == 8 and words[5] == "ffff" and not any(word.strip("0") for word in words[:5]):
        octets = bytes.fromhex(words[6].rjust(4, "0") + words[7].rjust(4, "0"))
        return ".".join(map(str, octets))
    return ""
