"""Charts as SVG that stands inside a page: lines with error bars, levels, labels that keep out of each other's way.

Colours are CSS variables of the page (`--c0` …), so that one drawing serves light and dark. Written by hand because
what there is costs more than it gives here: matplotlib and plotly are heavy, pygal takes 0.4 s to import and draws no
error bars, leather has neither error bars nor a dark form. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from cluster.bench.scale import nice_ticks

NARROW, WIDE, HEIGHT = 760, 1500, 400
LEFT, RIGHT, TOP, BOTTOM, INSIDE = 92, 20, 24, 62, 30
COLOURS = 6
LETTER, LINE = 8.2, 17  # pixels of a letter and a line of the labels
SMALL_FROM, NONE_FROM = 24, 150  # dots of a line from which on they are drawn small, or the line alone


@dataclass(frozen=True, slots=True)
class Dot:
    """A value. `spread`: half the error bar; `text` stands beside it, `tip` shows when pointed at; `alarm`: ringed."""

    x: float
    y: float
    spread: float = 0.0
    text: str = ""
    tip: str = ""
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """Dots of one name. `style`: line, dashed, dots (unconnected), or hollow (larger rings, drawn below the others)."""

    name: str
    dots: tuple[Dot, ...]
    colour: int = 0
    style: str = "line"


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line over the whole width, with its words on it."""

    y: float
    text: str
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Bar:
    """Two parts at one moment: what is held, and above it what is left; None where nothing was told."""

    held: float | None
    left: float | None
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """The bars of one name, one a tick of x."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn: lines, or bars. `x_ticks`: places with their words.

    `doubling`: each doubling of x takes the same room; `y_low`: where the y axis begins; `wide`: over the whole page.
    """

    title: str
    subtitle: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    levels: tuple[Level, ...] = ()
    doubling: bool = False
    y_low: float = 0.0
    wide: bool = False
    notes: tuple[str, ...] = ()
    bars: tuple[Bars, ...] = ()


@dataclass(slots=True)
class Place:
    """Where things are, in pixels, and which rectangles are taken."""

    width: int
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    doubling: bool = False
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)

    def x(self, value: float) -> float:
        """Pixels from the left."""
        at, span = math.log2(value) if self.doubling else value, self.x_high - self.x_low
        part = (at - self.x_low) / span if span else 0.5
        return LEFT + INSIDE + part * (self.width - LEFT - RIGHT - 2 * INSIDE)

    def y(self, value: float) -> float:
        """Pixels from the top; what lies below the axis stands on it."""
        part = max(0.0, value - self.y_low) / (self.y_high - self.y_low)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    def take(self, left: float, top: float, width: float, height: float = LINE, *, force: bool = False) -> bool:
        """Take a rectangle if it is free and inside; `force` takes it anyway."""
        right, bottom = left + width, top + height
        inside = left >= LEFT and right <= self.width - 2 and top >= 2 and bottom <= HEIGHT - BOTTOM + 2
        free = all(right < a or left > c or bottom < b or top > d for a, b, c, d in self.taken)
        if force or (inside and free):
            self.taken.append((left, top, right, bottom))
            return True
        return False


def draw(chart: Chart) -> str:
    """The chart as an `<svg>` element."""
    place = place_of(chart)
    parts = [*axes(chart, place), *_levels(chart, place)]
    order = sorted(enumerate(chart.lines), key=lambda pair: pair[1].style != "hollow")
    for _, line in order:
        parts += _curve(place, line)
    for shape, line in order:
        parts += [part for dot in line.dots for part in _mark(place, line, dot, shape)]
    for line in chart.lines:
        parts += [label for dot in line.dots if (label := _label(place, line, dot))]
    return frame(chart, place, parts)


def frame(chart: Chart, place: Place, parts: Sequence[str]) -> str:
    """The parts as one element that says what it is to those who do not see it."""
    name = escape(f"{chart.title}. {chart.subtitle}")
    return f'<svg viewBox="0 0 {place.width} {HEIGHT}" role="img" aria-label="{name}">' + "".join(parts) + "</svg>"


def place_of(chart: Chart) -> Place:
    """The scales: y to a little above the highest, x from the first tick or dot to the last."""
    dots = [dot for line in chart.lines for dot in line.dots]
    dots += [Dot(at, (bar.held or 0) + (bar.left or 0)) for one in chart.bars for at, bar in enumerate(one.bars)]
    highest = max([dot.y + dot.spread for dot in dots] + [level.y for level in chart.levels], default=1.0)
    xs = [dot.x for dot in dots] + [at for at, _ in chart.x_ticks] or [0.0]
    low, high = min(xs), max(xs)
    if chart.doubling:
        low, high = math.log2(low), math.log2(high)
    room = max(highest - chart.y_low, 1e-9)
    place = Place(WIDE if chart.wide else NARROW, low, high, chart.y_low, chart.y_low + room * 1.1, chart.doubling)
    for dot in dots:
        top, bottom = place.y(dot.y + dot.spread), place.y(dot.y - dot.spread)
        place.take(place.x(dot.x) - 6, top - 4, 12, bottom - top + 8, force=True)
    return place


def axes(chart: Chart, place: Place) -> Iterator[str]:
    """Grid lines with their numbers, the ticks of x, both titles."""
    bottom, right = HEIGHT - BOTTOM, place.width - RIGHT
    for value in nice_ticks(place.y_low, place.y_high):
        y = place.y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 8}" y="{y + 5:.1f}" text-anchor="end">{value:,.10g}</text>'
    last = -math.inf
    for at, text in chart.x_ticks:
        x, half = place.x(at), len(text) * LETTER / 2
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}"/>'
        if x - half > last + 6:
            yield f'<text class="tick" x="{x:.1f}" y="{bottom + 22}" text-anchor="middle">{escape(text)}</text>'
            last = x + half
    yield f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    across, along = (LEFT + right) / 2, (TOP + bottom) / 2
    yield f'<text class="name" x="{across}" y="{HEIGHT - 12}" text-anchor="middle">{escape(chart.x_title)}</text>'
    yield (
        f'<text class="name" transform="translate(20 {along}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_title)}</text>"
    )


def _levels(chart: Chart, place: Place) -> Iterator[str]:
    right = place.width - RIGHT
    for level in chart.levels:
        y, wide = place.y(level.y), len(level.text) * LETTER
        place.take(right - wide, y - LINE - 3, wide, force=True)
        colour = f"c{level.colour % COLOURS}"
        yield f'<line class="level {colour}" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="level {colour}" x="{right}" y="{y - 6:.1f}" text-anchor="end">{escape(level.text)}</text>'


def _curve(place: Place, line: Line) -> Iterator[str]:
    if line.style in ("hollow", "dots") or len(line.dots) < 2:
        return
    points = " ".join(f"{place.x(dot.x):.1f},{place.y(dot.y):.1f}" for dot in line.dots)
    dashed = " dashed" if line.style == "dashed" else ""
    yield f'<polyline class="curve{dashed} c{line.colour % COLOURS}" points="{points}"/>'


def _mark(place: Place, line: Line, dot: Dot, shape: int) -> Iterator[str]:
    """A dot with its error bar."""
    x, y, colour = place.x(dot.x), place.y(dot.y), f"c{line.colour % COLOURS}"
    if dot.spread and line.style != "hollow":
        top, low = place.y(dot.y + dot.spread), place.y(dot.y - dot.spread)
        caps = f"M{x - 7:.1f} {top:.1f}h14M{x - 7:.1f} {low:.1f}h14"
        yield f'<path class="bar {colour}" d="M{x:.1f} {top:.1f}V{low:.1f}{caps}"/>'
    if dot.alarm:
        yield f'<circle class="alarm" cx="{x:.1f}" cy="{y:.1f}" r="10"/>'
    if len(line.dots) >= NONE_FROM:
        return
    tip = f"<title>{escape(dot.tip)}</title>" if dot.tip else ""
    many = len(line.dots) >= SMALL_FROM
    kind = ("dot hollow" if line.style in ("dashed", "hollow") else "dot") + (" small" if many else "")
    size = 2.5 if many else 8.5 if line.style == "hollow" else 5
    yield f'<path class="{kind} {colour}" d="{outline(shape, x, y, size)}">{tip}</path>'


def outline(shape: int, x: float, y: float, r: float) -> str:
    """Circle, square, triangle or diamond, so that lines are told apart without colour."""
    kind = shape % 4
    if kind == 0:
        return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z"
    if kind == 1:
        return f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z"
    if kind == 2:
        return f"M{x:.1f} {y - r * 1.2:.1f}l{r * 1.15:.2f} {r * 2:.1f}h{-r * 2.3:.2f}z"
    r *= 1.3
    return f"M{x:.1f} {y - r:.1f}l{r:.1f} {r:.1f}l{-r:.1f} {r:.1f}l{-r:.1f} {-r:.1f}z"


def _label(place: Place, line: Line, dot: Dot) -> str:
    """The dot's number where there is room for it: above, below, right, left; nowhere when there is none."""
    if not dot.text:
        return ""
    x, wide = place.x(dot.x), len(dot.text) * LETTER
    top, low, middle = place.y(dot.y + dot.spread), place.y(dot.y - dot.spread), place.y(dot.y)
    for left, upper in (
        (x - wide / 2, top - LINE - 5), (x - wide / 2, low + 6), (x + 12, middle - LINE / 2),
        (x - wide - 12, middle - LINE / 2), (x + 10, top - LINE - 2), (x + 10, low + 4),
    ):  # fmt: skip
        if place.take(left, upper, wide):
            return (
                f'<text class="value c{line.colour % COLOURS}" x="{left + wide / 2:.1f}" y="{upper + LINE - 4:.1f}" '
                f'text-anchor="middle">{escape(dot.text)}</text>'
            )
    return ""


def legend(chart: Chart) -> list[tuple[str, str]]:
    """Each name with its sample."""
    found = [(line.name, swatch(line, shape)) for shape, line in enumerate(chart.lines)]
    for place, one in enumerate(chart.bars):
        box = f'<rect class="held c{place % COLOURS}" x="10" y="1" width="15" height="14"/>'
        found.append((one.name, f'<svg class="swatch" viewBox="0 0 36 16" aria-hidden="true">{box}</svg>'))
    return found


def swatch(line: Line, shape: int) -> str:
    """The line's sample."""
    colour = f"c{line.colour % COLOURS}"
    dashed = " dashed" if line.style == "dashed" else ""
    curve = "" if line.style in ("hollow", "dots") else f'<path class="curve{dashed} {colour}" d="M1 8H35"/>'
    kind = "dot hollow" if line.style in ("dashed", "hollow") else "dot"
    mark = f'<path class="{kind} {colour}" d="{outline(shape, 18, 8, 5)}"/>'
    return f'<svg class="swatch" viewBox="0 0 36 16" aria-hidden="true">{curve}{mark}</svg>'
