"""Pictures of a few shapes, drawn into a PNG with nothing but zlib; pure."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Literal

SIDE = 448
"""Pixels of either side: a multiple of the patches of Gemma (16) and Qwen (28)."""

COLOURS = {"red": (220, 20, 30), "green": (20, 160, 50), "blue": (30, 60, 220), "yellow": (250, 215, 0)}
WHITE = (255, 255, 255)


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape in one colour around a centre, `radius` pixels to its sides."""

    kind: Literal["square", "circle", "triangle"]
    colour: str
    x: int
    y: int
    radius: int

    def covers(self, x: int, y: int) -> bool:
        """Whether a pixel belongs to it; a triangle stands on its base."""
        across, down = abs(x - self.x), y - self.y
        if self.kind == "circle":
            return across * across + down * down <= self.radius * self.radius
        if abs(down) > self.radius:
            return False
        return across <= self.radius if self.kind == "square" else 2 * across <= down + self.radius


@cache
def draw(shapes: tuple[Shape, ...]) -> bytes:
    """A PNG with the shapes on white, later ones above earlier ones (W3C's PNG: RGB of 8 bits, no filter)."""
    rows = b"".join(b"\0" + bytes(value for x in range(SIDE) for value in _pixel(shapes, x, y)) for y in range(SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows, 9)), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _pixel(shapes: tuple[Shape, ...], x: int, y: int) -> tuple[int, int, int]:
    return next((COLOURS[shape.colour] for shape in reversed(shapes) if shape.covers(x, y)), WHITE)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_uri(png: bytes) -> str:
    """As an image_url takes it."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
