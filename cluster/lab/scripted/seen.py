"""Looks at a picture: which shapes in which colours are in a PNG. Small and slow; every fourth pixel is looked at."""

from __future__ import annotations

import base64
import struct
import zlib
from collections import defaultdict
from functools import cache

from cluster.lab.scripted.asked import Refused

STEP = 4
NAMES = {
    "red": (230, 20, 20),
    "green": (20, 160, 40),
    "blue": (30, 60, 220),
    "yellow": (250, 220, 0),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "orange": (255, 140, 0),
    "purple": (140, 20, 160),
}
FEWEST = 20
"""Looked-at pixels of a shape."""


@cache
def describe(uri: str) -> str:
    """One line for each shape, from left to right, as `red square`. Raises Refused for what is no PNG of 8-bit RGB."""
    rows = _rows(_chunks(uri))
    spots: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for y, row in enumerate(rows[::STEP]):
        for x in range(0, len(row), 3 * STEP):
            spots[_colour(row[x], row[x + 1], row[x + 2])].append((x // (3 * STEP), y))
    shapes = {name: found for name, found in spots.items() if name != "white" and len(found) >= FEWEST}
    from_left = sorted(shapes, key=lambda name: min(shapes[name]))
    return "\n".join(f"{name} {_kind(shapes[name])}" for name in from_left)


def _chunks(uri: str) -> dict[bytes, bytes]:
    """The chunks of a PNG in a data URI, those of one kind joined."""
    data = base64.b64decode(uri.partition("base64,")[2])
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise Refused(400, "cannot identify image file")
    found: dict[bytes, bytes] = defaultdict(bytes)
    at = 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        found[data[at + 4 : at + 8]] += data[at + 8 : at + 8 + length]
        at += length + 12
    return found


def _rows(chunks: dict[bytes, bytes]) -> list[bytes]:
    """The rows of a picture without filters."""
    width, height, depth, kind = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    pixels = zlib.decompress(chunks[b"IDAT"])
    size = 3 * width + 1
    if (depth, kind) != (8, 2) or any(pixels[::size]):
        raise Refused(400, "cannot identify image file: only RGB of 8 bits without filters is known")
    return [pixels[row * size + 1 : (row + 1) * size] for row in range(height)]


@cache
def _colour(red: int, green: int, blue: int) -> str:
    """The nearest colour that has a name."""
    return min(NAMES, key=lambda name: sum((a - b) ** 2 for a, b in zip(NAMES[name], (red, green, blue), strict=True)))


def _kind(spots: list[tuple[int, int]]) -> str:
    """By how much of its frame a shape fills: a triangle half, a circle π/4, a square all."""
    across, down = zip(*spots, strict=True)
    share = len(spots) / ((max(across) - min(across) + 1) * (max(down) - min(down) + 1))
    return "triangle" if share < 0.65 else "circle" if share < 0.9 else "square"
