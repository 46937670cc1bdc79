"""A chart as SVG that stands inside a page, drawn by matplotlib: the same bytes for the same chart, light and dark.

Importing this needs the extra `report`.
"""

from __future__ import annotations

import io
import re
import warnings
from html import escape
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cluster.bench.charts import Chart
from cluster.bench.tables import number

NAMES = ("c0", "c1", "c2", "c3", "c4", "c5", "card", "soft", "grid", "axis", "alarm")
COLORS = {name: f"#fe01{place:02x}" for place, name in enumerate(NAMES)}
"""Stand-ins: in the drawing each is a variable of the page, which has a light and a dark color for it."""
LINES = [COLORS[f"c{place}"] for place in range(6)]
MARKERS = "os^D"
MOST_NUMBERS = 12
"""Dots of a line from which on their numbers are not written beside them."""
NO_MARKERS = 150
"""Dots of a line from which on only the line is drawn."""
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": COLORS["soft"],
    "axes.labelcolor": COLORS["soft"],
    "axes.edgecolor": COLORS["axis"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": COLORS["grid"],
    "xtick.color": COLORS["soft"],
    "ytick.color": COLORS["soft"],
    "ytick.left": False,
    "legend.frameon": False,
}


def draw(chart: Chart, salt: str) -> str:
    """The chart as an `<svg>` element; `salt` keeps its ids apart from those of the page's other charts."""
    with style.context(["default", STYLE | {"svg.hashsalt": salt}], after_reset=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the font lacks is drawn by the reader's own
        figure = Figure(figsize=(7.2, 4), layout="constrained")
        axes = figure.add_subplot(xlabel=chart.x_title, ylabel=chart.y_title)
        handles = draw_lines(chart, axes)
        if chart.places:
            crowded = sum(map(len, chart.places)) > 80
            axes.set_xticks(range(len(chart.places)), chart.places, rotation=20 if crowded else 0)
        if chart.from_zero:
            axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.10g}")
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(3, len(handles)))
        out = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return inline(out.getvalue(), f"{chart.title}. {chart.subtitle}")


def inline(svg: str, name: str) -> str:
    """A drawing as part of a page: named for those who do not see it, without sizes and namespaces, in its colors."""
    box = re.search(r'viewBox="[^"]*"', svg)
    body = svg[svg.index(">", svg.index("<svg")) + 1 :].replace("xlink:href", "href")
    used = set(re.findall(r"#([\w-]+)", body))
    body = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", body)
    for variable, color in COLORS.items():
        body = body.replace(color, f"var(--{variable})")
    return f'<svg {box[0] if box else ""} role="img" aria-label="{escape(name)}">{body.rstrip()}'


def draw_lines(chart: Chart, axes: Axes) -> dict[str, Any]:
    """Lines with error bars, ringed dots, levels; what the legend names."""
    handles: dict[str, Any] = {}
    for place, line in enumerate(chart.lines):
        color, xs, ys = LINES[line.color % len(LINES)], [dot.x for dot in line.dots], [dot.y for dot in line.dots]
        if line.style == "level":
            axes.axhline(ys[0], color=color, linestyle=":")
            right: dict[str, Any] = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
            axes.annotate(line.name, (1, ys[0]), (0, 3), color=color, ha="right", annotation_clip=False, **right)
            continue
        hollow = line.style == "hollow"  # published numbers are larger rings without a line, below the others
        spreads = [dot.spread for dot in line.dots]
        handles[line.name] = axes.errorbar(
            xs,
            ys,
            yerr=spreads if any(spreads) and not hollow else None,
            color=color,
            linestyle={"line": "-", "dashed": "--"}.get(line.style, "none"),
            marker="" if len(line.dots) >= NO_MARKERS else MARKERS[place % len(MARKERS)],
            markersize=10 if hollow else 5,
            markerfacecolor=COLORS["card"] if line.style in ("hollow", "dashed") else color,
            capsize=4,
            zorder=2 if hollow else 3,
        )
    alarms = [dot for line in chart.lines for dot in line.dots if dot.alarm]
    xs, ys = [dot.x for dot in alarms], [dot.y for dot in alarms]
    axes.plot(xs, ys, "o", color=COLORS["alarm"], markersize=11, fillstyle="none")
    measured = [line for line in chart.lines if line.style not in ("hollow", "level")]
    if chart.places and len(measured) <= 2 and len(chart.places) <= MOST_NUMBERS:
        measured.sort(key=lambda line: -max((dot.y for dot in line.dots), default=0.0))
        for line, sign, side in zip(measured, (1, -1), ("bottom", "top"), strict=False):  # above the higher one
            look: dict[str, Any] = {"color": LINES[line.color % len(LINES)], "ha": "center", "va": side}
            for dot in line.dots:
                at = (dot.x, dot.y + sign * dot.spread)
                axes.annotate(number(dot.y), at, (0, 5 * sign), textcoords="offset points", **look)
    axes.margins(y=0.12)
    return handles
