"""A report as one HTML page that needs nothing else: no network, no script, light and dark. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from cluster.bench.report import Table
from cluster.bench.svg import Chart, draw, legend
from cluster.bench.svg_bars import draw_bars

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
