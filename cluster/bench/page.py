"""A report as one page: warnings, the numbers that matter, charts, tables, conditions; page.html is its form."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from cluster.bench.charts import (
    Chart,
    alone,
    concurrency_chart,
    depth_charts,
    moments_chart,
    sweep_chart,
    time_charts,
    tokens,
)
from cluster.bench.compare import against, all_warnings, bests, details, moments_table, overview
from cluster.bench.rows import suffix
from cluster.bench.scaling import PP, TG, TTFR, Entry, ScalingRow, interval, scaling_rows
from cluster.bench.series import Series
from cluster.bench.tables import Table, show, table

MOST_FIGURES = 4
WITHOUT_CHARTS = (
    "No charts: matplotlib is not installed. The extra `report` adds them: pip install 'spark-cluster[report]'"
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that matters: `1.70×`, what it is of, how sure it is. `faint`: not significant."""

    value: str
    what: str
    detail: str = ""
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """All that a page shows. `banners` must be read first."""

    title: str
    subtitle: str
    banners: tuple[str, ...]
    figures: tuple[Figure, ...]
    charts: tuple[Chart, ...]
    machine_charts: tuple[Chart, ...]
    tables: tuple[Table, ...]
    footer: str


def render(page: Page) -> str:
    """The page as one document: no network, no script; without matplotlib its tables, and what adds the charts."""
    from jinja2 import Environment, StrictUndefined

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where it keeps its cache of fonts is nobody's concern
    sections, missing = [], ""
    try:
        from cluster.bench.plot import draw

        for title, charts in (("", page.charts), ("The machines", page.machine_charts)):
            drawn = [(chart, draw(chart, f"{title}{place}")) for place, chart in enumerate(charts)]
            sections += [(title, drawn)] if drawn else []
    except ImportError:
        missing = WITHOUT_CHARTS
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((resources.files("cluster.bench") / "page.html").read_text("utf-8"))
    return template.render(page=page, sections=sections, missing=missing) + "\n"


def page_of(entries: Sequence[Entry], series: Sequence[Series], version: str) -> Page:
    sweep = next((one for one in series if one.kind == "sweep"), None)
    manifests = [entry.result.manifest for entry in entries]
    title = " and ".join(list(dict.fromkeys(one.recipe or one.model for one in manifests))[:3])
    if sweep:
        title += f": {', '.join(sweep.varied)} varied"
    elif len(entries) <= MOST_FIGURES:
        title += f": {' and '.join(entry.label for entry in entries)}"
    subtitle = [" and ".join(dict.fromkeys(one.model for one in manifests))]
    subtitle += dict.fromkeys(f"vLLM {one.versions['vllm']}" for one in manifests if one.versions.get("vllm"))
    subtitle += dict.fromkeys(product for one in manifests for product in one.products)
    subtitle += dict.fromkeys(gpu for one in manifests for gpu in one.gpus)
    subtitle += [f"{min(entry.result.timestamp for entry in entries)[:16]} UTC"] if entries else []
    found = [*(sweep_chart(sweep, entries) if sweep else ()), *depth_charts(entries), *concurrency_chart(entries)]
    return Page(
        title=title,
        subtitle=" · ".join(subtitle),
        banners=banners(entries, sweep),
        figures=tuple(figures(entries, sweep)),
        charts=tuple(chart for chart in found if any(line.dots for line in chart.lines)),
        machine_charts=(*moments_chart(entries), *time_charts(entries)),
        tables=(*overview(entries, series), *details(entries), *moments_table(entries), conditions(entries)),
        footer=f"written by {version} from {', '.join(entry.path.name for entry in entries if entry.path)}",
    )


def banners(entries: Sequence[Entry], sweep: Series | None) -> tuple[str, ...]:
    """What must be read before any number; said once when it is true of all."""
    lines = all_warnings(entries)
    for entry in entries[1:]:
        if other := against(entries[0], entry, sweep.varied if sweep else ()):
            what = "; ".join(map(str, other[:6]))
            lines.append(f"NOT COMPARABLE: {entry.label} and {entries[0].label} differ in {what}")
    return tuple(lines)


def figures(entries: Sequence[Entry], sweep: Series | None) -> Iterator[Figure]:
    """The numbers that matter: speed-ups of the largest size, else the best of a sweep, else the rates."""
    if sweep:
        for best in bests(entries, sweep.varied)[0][:MOST_FIGURES]:
            what = f"{best.test} with {best.label}" + (f", a tie with {', '.join(best.ties)}" if best.ties else "")
            low, high = best.interval or (best.value.mean, best.value.mean)
            yield Figure(f"{best.value.mean:.1f} t/s", what, f"95 %: {low:.2f}–{high:.2f}", bool(best.ties))
        return
    sized = sorted((entry for entry in entries if entry.tp and not entry.replicas), key=lambda entry: entry.tp or 0)
    if len(sized) > 1 and sized[0].tp != sized[-1].tp and not against(sized[0], sized[-1]):
        least, largest = sized[0], sized[-1]
        rows = [row for row in scaling_rows(least.result, largest.result, largest.references) if row.speed_up]
        chosen: dict[tuple[str, int], ScalingRow] = {}
        for what, end in ((TG, min), (TG, max), (PP, max), (TTFR, max)):
            own = [row for row in rows if row.what == what and row.concurrency == min(one.concurrency for one in rows)]
            chosen |= {(what, row.depth): row for row in own if row.depth == end(one.depth for one in own)}
        for one in chosen.values():
            where = f" at depth {tokens(one.depth)}" if one.depth else ""
            what = f"{one.what} ({one.test.partition(' @')[0]}){where}, {largest.label} beside {least.label}"
            if gain := one.speed_up:
                sure = f"95 %: {interval(gain)} · efficiency {one.efficiency:.0%}"
                yield Figure(f"{gain.value:.2f}×", what, sure, faint=not gain.significant)
        return
    for entry in entries[:MOST_FIGURES]:
        for row in alone(entry)[:1]:
            tail = suffix(row.context_size, row.concurrency, row.concurrency)
            for name, rate, form in (
                (f"tg{row.response_size}", row.tg_throughput, ".1f"),
                (f"pp{row.prompt_size}", row.pp_throughput, ",.0f"),
            ):
                if rate:
                    yield Figure(f"{rate.mean:{form}} t/s", f"{entry.label} {name}{tail}", show(rate))


def conditions(entries: Sequence[Entry]) -> Table:
    """What each manifest holds."""
    lines: dict[str, dict[str, Any]] = {}
    for entry in entries:
        for key, value in entry.result.manifest.document().items():
            if key not in ("spec", "hosts"):
                lines.setdefault(key, {"condition": key})[entry.label] = plain(value)
    known = [line for line in lines.values() if any(line[entry.label] for entry in entries)]
    return table("conditions", known, ("all of it is in the result's JSON, under manifest",), len(entries) + 1)


def plain(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {plain(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
