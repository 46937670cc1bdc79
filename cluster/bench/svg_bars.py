"""Bars in groups, each of two parts: what is held, and above it in a lighter tone what is left. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from cluster.bench.scale import number
from cluster.bench.svg import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    INSIDE,
    LEFT,
    RIGHT,
    Bar,
    Chart,
    Place,
    axes,
    frame,
    place_of,
)

GAP = 0.24  # part of a group's room that stays empty
TALL = 21  # pixels a part needs to hold its number


def draw_bars(chart: Chart) -> str:
    """The chart as an `<svg>` element."""
    place = place_of(chart)
    room = (place.width - LEFT - RIGHT) / len(chart.x_ticks)
    place.x_low, place.x_high = _edges(place, room)
    wide = room * (1 - GAP) / len(chart.bars)
    parts = [*axes(chart, place)]
    for colour, one in enumerate(chart.bars):
        for at, bar in enumerate(one.bars):
            parts += _bar(place, bar, LEFT + (at + GAP / 2) * room + colour * wide + 1.5, wide - 3, colour)
    return frame(chart, place, parts)


def _edges(place: Place, room: float) -> tuple[float, float]:
    """The x scale under which the number of a group lies in the middle of its room."""
    low = INSIDE / room - 0.5
    return low, low + (place.width - LEFT - RIGHT - 2 * INSIDE) / room


def _bar(place: Place, bar: Bar, left: float, wide: float, colour: int) -> Iterator[str]:
    held, whole = bar.held or 0.0, (bar.held or 0.0) + (bar.left or 0.0)
    base, edge, top = HEIGHT - BOTTOM, place.y(held), place.y(whole)
    name, middle, tip = f"c{colour % COLOURS}", left + wide / 2, f"<title>{escape(bar.tip)}</title>"
    if bar.left is not None:
        yield _box(f"left {name}", left, top, wide, edge - top, tip)
    if bar.held is not None:
        yield _box(f"held {name}", left, edge, wide, base - edge, tip)
    for value, kind, high, low in ((bar.left, f"value {name}", edge, top), (bar.held, "inside", base, edge)):
        text = "" if value is None else number(value)
        if high - low >= TALL and len(text) * 8 <= wide + 8:
            at = f'x="{middle:.1f}" y="{(low + high) / 2 + 5:.1f}"'
            yield f'<text class="{kind}" {at} text-anchor="middle">{text}</text>'


def _box(name: str, x: float, y: float, width: float, height: float, tip: str) -> str:
    size = f'width="{width:.1f}" height="{max(0.0, height):.1f}"'
    return f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" {size}>{tip}</rect>'
