"""Charts as SVG that stands inside a page, and the page itself: no network, no script, light and dark. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from cluster.bench.tables import Table


def nice_step(span: float, about: int = 5) -> float:
    """A round number of which about so many make a span."""
    raw = span / about
    size: float = 10.0 ** math.floor(math.log10(raw))
    return next(one * size for one in (1, 2, 2.5, 5, 10) if one * size >= raw * 0.999)


def nice_ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to at most `high`."""
    if high <= low:
        return [low]
    step = nice_step(high - low)
    first = math.ceil(low / step - 1e-9)
    return [round((first + count) * step, 10) for count in range(int(high / step + 1e-9) - first + 1)]


def nice_low(lowest: float, highest: float) -> float:
    """Where an axis begins that need not begin at 0: 0, unless all values lie in a narrow band far above it."""
    if lowest < 0.5 * highest:
        return 0.0
    step = nice_step(max(highest - lowest, 0.02 * highest))
    return max(0.0, (math.floor(lowest / step) - 1) * step)


def number(value: float) -> str:
    """A number with as many digits as can be told apart: 0.25, 6.5, 11.2, 873, 12,400."""
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 2 else f"{value:.2g}"


def time_ticks(high: float, steps: Sequence[float] = (1, 2, 5, 10, 15, 30, 60, 120, 300)) -> list[float]:
    """Ticks of a time axis from 0: the smallest listed step that gives at most eight."""
    step = next((one for one in steps if high / one <= 8), steps[-1])
    return [count * step for count in range(int(high / step + 1e-9) + 1)]


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
        (x - wide / 2, top - LINE - 5),
        (x - wide / 2, low + 6),
        (x + 12, middle - LINE / 2),
        (x - wide - 12, middle - LINE / 2),
        (x + 10, top - LINE - 2),
        (x + 10, low + 4),
    ):
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


STYLE = """
:root{color-scheme:light dark;--paper:#fff;--card:#f6f7f9;--ink:#1b1f24;--soft:#57606a;--grid:#dde1e6;--axis:#8b949e;
--alarm:#cf222e;--warn:#fff1cc;--warn-ink:#633c01;--warn-edge:#d4a72c;
--c0:#1f6feb;--c1:#c4510a;--c2:#1a7f37;--c3:#8250df;--c4:#b0266e;--c5:#4d5b6a}
@media (prefers-color-scheme:dark){:root{--paper:#0e1216;--card:#171c22;--ink:#e8edf2;--soft:#9aa5b1;--grid:#2a323b;
--axis:#6b7682;--alarm:#ff7b72;--warn:#3a2c05;--warn-ink:#f5d67b;--warn-edge:#9e7a16;
--c0:#6cb0ff;--c1:#ffa65c;--c2:#5fd27e;--c3:#c7a3ff;--c4:#ff8fc4;--c5:#b3bfcb}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,"DejaVu Sans",sans-serif}
main{max-width:1500px;margin:0 auto;padding:28px 24px 64px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 4px}h2{font-size:1.2rem;margin:40px 0 12px}
h3{font-size:1.05rem;margin:0}
p{margin:0}.soft{color:var(--soft)}.sub{font-size:.875rem;color:var(--soft)}
.banner{margin:14px 0 0;padding:10px 14px;border:1px solid var(--warn-edge);border-left-width:6px;border-radius:6px;
background:var(--warn);color:var(--warn-ink);font-weight:600}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,280px),1fr));gap:14px;margin-top:22px}
.figure{background:var(--card);border:1px solid var(--grid);border-radius:10px;padding:14px 16px}
.figure b{display:block;font-size:2rem;line-height:1.15;font-variant-numeric:tabular-nums}
.figure.faint b{color:var(--soft)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,560px),1fr));gap:18px}
figure{margin:0;background:var(--card);border:1px solid var(--grid);border-radius:10px;padding:16px 16px 10px;
break-inside:avoid}
figure.wide{grid-column:1/-1}
.drawing{overflow-x:auto;margin-top:6px}.drawing svg{width:100%;min-width:440px;height:auto;display:block}
.wide .drawing svg{min-width:860px}
.legend{display:flex;flex-wrap:wrap;gap:2px 18px;margin-top:8px;font-size:.875rem}
.legend span{display:inline-flex;align-items:center;gap:7px;white-space:nowrap}.swatch{width:36px;height:16px}
figcaption ul,.notes{margin:6px 0 4px;padding-left:18px;color:var(--soft);font-size:.8125rem}
svg text{font-family:inherit;fill:var(--soft);font-variant-numeric:tabular-nums}
svg .tick,svg .name{font-size:15px}svg .value,svg .inside{font-size:15px;font-weight:600}
svg text.value{fill:var(--c);paint-order:stroke;stroke:var(--card);stroke-width:5px;stroke-linejoin:round}
svg text.level{font-size:15px;fill:var(--c);paint-order:stroke;stroke:var(--card);stroke-width:4px}
svg .inside{fill:var(--card)}svg .held{fill:var(--c)}svg .left{fill:var(--c);fill-opacity:.22}
svg .grid{stroke:var(--grid)}svg .axis{stroke:var(--axis)}
svg .curve{fill:none;stroke:var(--c);stroke-width:2.25;stroke-linejoin:round}svg .dashed{stroke-dasharray:6 5}
svg line.level{stroke:var(--c);stroke-width:1.5;stroke-dasharray:2 5}
svg .bar{fill:none;stroke:var(--c);stroke-width:1.6}
svg .dot{fill:var(--c);stroke:var(--card);stroke-width:1.5}svg .hollow{fill:var(--card);stroke:var(--c);stroke-width:2}
svg .small{stroke-width:.75}svg .alarm{fill:none;stroke:var(--alarm);stroke-width:2}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}
details{border:1px solid var(--grid);border-radius:10px;margin:10px 0;background:var(--card)}
summary{cursor:pointer;padding:10px 16px;font-weight:600}
details>div{overflow-x:auto;padding:0 16px 14px}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:5px 12px;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap;vertical-align:top}
th{color:var(--soft);font-weight:600}.word{text-align:left}td.word.long{white-space:normal;min-width:280px}
footer{margin-top:40px;font-size:.8125rem;color:var(--soft)}
@media print{details{break-inside:avoid}main{max-width:none;padding:0}}
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that matters: `1.70×`, what it is of, how sure it is. `faint`: not significant."""

    value: str
    what: str
    detail: str = ""
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """All that a page says. `banners` must be read first."""

    title: str
    subtitle: str
    banners: tuple[str, ...]
    figures: tuple[Figure, ...]
    charts: tuple[Chart, ...]
    machine_charts: tuple[Chart, ...]
    tables: tuple[Table, ...]
    footer: str


def render(page: Page) -> str:
    """The page as one document."""
    return "\n".join(_parts(page)) + "\n"


def _parts(page: Page) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield f"<title>{escape(page.title)}</title><style>{STYLE}</style></head><body><main>"
    yield f'<h1>{escape(page.title)}</h1><p class="soft">{escape(page.subtitle)}</p>'
    for banner in page.banners:
        yield f'<p class="banner" role="alert">{escape(banner)}</p>'
    if page.figures:
        yield '<div class="figures">' + "".join(map(_figure, page.figures)) + "</div>"
    yield from _section("", page.charts)
    yield from _section("The machines", page.machine_charts)
    if page.tables:
        yield "<h2>Tables</h2>"
    for table in page.tables:
        yield _details(table)
    yield f"<footer>{escape(page.footer)}</footer></main></body></html>"


def _figure(one: Figure) -> str:
    detail = f'<p class="sub">{escape(one.detail)}</p>' if one.detail else ""
    faint = " faint" if one.faint else ""
    return f'<div class="figure{faint}"><b>{escape(one.value)}</b><p>{escape(one.what)}</p>{detail}</div>'


def _section(title: str, charts: Sequence[Chart]) -> Iterator[str]:
    """Charts side by side where there is room."""
    if not charts:
        return
    yield f"<h2>{escape(title)}</h2>" if title else '<div style="height:22px"></div>'
    yield '<div class="charts">'
    for chart in charts:
        names = "".join(f"<span>{sample}{escape(name)}</span>" for name, sample in legend(chart))
        notes = "".join(f"<li>{escape(note)}</li>" for note in chart.notes)
        drawn, wide = draw_bars(chart) if chart.bars else draw(chart), ' class="wide"' if chart.wide else ""
        yield f'<figure{wide}><h3>{escape(chart.title)}</h3><p class="sub">{escape(chart.subtitle)}</p>'
        yield f'<div class="legend">{names}</div><div class="drawing">{drawn}</div>'
        yield f"<figcaption>{f'<ul>{notes}</ul>' if notes else ''}</figcaption></figure>"
    yield "</div>"


def _details(table: Table) -> str:
    """A table that opens when it is wanted."""

    def cell(kind: str, column: int, text: str) -> str:
        word = ' class="word long"' if len(text) > 40 else ' class="word"' if column < table.text_columns else ""
        return f"<{kind}{word}>{escape(text)}</{kind}>"

    head = "".join(cell("th", column, text) for column, text in enumerate(table.headers))
    body = "".join(
        "<tr>" + "".join(cell("td", column, text) for column, text in enumerate(row)) + "</tr>" for row in table.rows
    )
    grid = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if table.rows else ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    notes = f'<ul class="notes">{notes}</ul>' if notes else ""
    return f"<details><summary>{escape(table.title)}</summary><div>{grid}{notes}</div></details>"
