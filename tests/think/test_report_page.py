"""The page: needs nothing else, shows first what must be read first, draws what was measured."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from report_tools import KEY, ONE, TWO, entry, row, sweep_series, sweep_step

from cluster.bench.charts import (
    Chart,
    Dot,
    Line,
    concurrency_chart,
    depth_charts,
    moments_chart,
    sweep_chart,
    time_charts,
)
from cluster.bench.page import WITHOUT_CHARTS, Page, page_of, render
from cluster.bench.plot import NAMES, draw
from cluster.bench.result import HostState, read_result
from cluster.bench.scaling import Entry
from cluster.bench.tables import number


def page_from(*entries: Entry) -> Page:
    return page_of(entries, (), "cluster 1")


@pytest.fixture
def pair() -> list[Entry]:
    return [entry(1, ONE), entry(2, TWO)]


@pytest.fixture(scope="module")
def page() -> str:
    """The pair's page, drawn once: that takes seconds."""
    return render(page_from(entry(1, ONE), entry(2, TWO)))


def drawings(text: str) -> list[ElementTree.Element]:
    """Every SVG of a page, read as XML."""
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def words(svg: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in svg.iter("text")]


def test_the_page_needs_no_network_and_no_script(page: str) -> None:
    assert not re.search(r"https?://|<script|<link|<img|@import|url\((?!#)|src=|href=(?!\"#)", page)
    assert len(page) < 200_000
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids)), "drawings share no name"
    assert drawings(page), "every drawing is well-formed"
    light, dark = page.split("@media (prefers-color-scheme:dark)")
    assert [name for name in NAMES if f"--{name}:" not in light or f"--{name}:" not in dark[:600]] == []
    assert not re.search(r"<svg[^§]*#[0-9a-f]{6}\b", dark), "every color is one of the page's"


def test_the_same_measurements_make_the_same_page(pair: list[Entry], page: str) -> None:
    assert render(page_from(*pair)) == page


def test_without_matplotlib_the_page_has_its_tables_and_says_what_adds_charts(
    pair: list[Entry], page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "spark-cluster[report]" not in page
    monkeypatch.delitem(sys.modules, "cluster.bench.plot")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = render(page_from(*pair))
    assert drawings(text) == []
    assert "The machines" not in text
    assert text.count("spark-cluster[report]") == 1
    assert "spark-cluster[report]" in WITHOUT_CHARTS
    assert text.count("<details>") == page.count("<details>") > 3
    assert "1.72×" in text


def test_hostile_names_stay_text(pair: list[Entry]) -> None:
    evil = "<script>alert(1)</script>&\"'"
    pair = [replace(one, label=f"{evil}{number}") for number, one in enumerate(pair)]
    text = render(page_of(pair, (), evil))
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    drawings(text)


def test_simulated_dummy_failed_and_interrupted_are_on_top() -> None:
    hosts = (HostState("spark1", "head", "NVIDIA DGX Spark (simulated)"),)
    one = entry(1, ONE, hosts=hosts, weights="dummy")
    rows = (replace(one.result.rows[0], failed=1), *one.result.rows[1:])
    text = render(page_from(replace(one, result=replace(one.result, rows=rows, complete=False))))
    top = text[: text.index("<figure")]
    assert [word for word in ("SIMULATED HOSTS", "DUMMY WEIGHTS", "FAILED", "INTERRUPTED") if word not in top] == []


def test_what_may_not_be_compared_is_said_and_has_no_speed_up(pair: list[Entry]) -> None:
    page = page_from(pair[0], entry(2, TWO, seed=5))
    assert page.banners == ("NOT COMPARABLE: TP=2 and TP=1 differ in seed: 1 → 5",)
    assert not any("×" in one.value for one in page.figures)


def test_the_numbers_that_matter(pair: list[Entry]) -> None:
    page = page_from(*pair)
    assert [one.value for one in page.figures] == ["1.72×"] * 4
    assert page.figures[1].what == "token generation (tg128) at depth 16K, TP=2 beside TP=1"
    assert page.figures[0].detail.startswith("95 %: 1.6")
    same = page_from(pair[0], entry(2, (6.3, 6.5, 6.7)))
    assert {one.faint for one in same.figures} == {True}, "not significant"


def test_generation_over_depth(pair: list[Entry]) -> None:
    generation, prompts, waits = depth_charts(pair)
    levels = ["ceiling TP=1: 8.8 t/s", "ceiling TP=2: 17.6 t/s"]
    assert [line.name for line in generation.lines] == ["TP=1", "TP=2", "published TP=1", "published TP=2", *levels]
    dot = generation.lines[1].dots[0]
    assert (dot.x, dot.y, dot.spread) == (0, pytest.approx(11.2), pytest.approx(0.2))
    assert generation.places == ("0", "16K")
    assert [line.name for line in (*prompts.lines, *waits.lines)] == ["TP=1", "TP=2"] * 2
    [svg] = drawings(draw(generation, ""))
    names = {"TP=1", "TP=2", "published TP=1", "published TP=2"}
    shown = {"11.2", "6.5", "16K", "context depth (tokens)", "tokens per second (t/s)", "ceiling TP=2: 17.6 t/s"}
    assert names | shown <= set(words(svg))


def test_numbers_in_another_depth_mode_are_not_drawn() -> None:
    other = [entry(1, ONE, depth_mode="prefix-caching"), entry(2, TWO, depth_mode="prefix-caching")]
    assert not [line.name for line in next(depth_charts(other)).lines if "published" in line.name]


def test_a_ceiling_far_above_is_left_out(pair: list[Entry]) -> None:
    chart = next(depth_charts([replace(one, reading=one.reading and replace(one.reading, bytes=1e6)) for one in pair]))
    assert not [line for line in chart.lines if line.style == "level"]


def test_throughput_over_concurrency() -> None:
    rows = tuple(row((6.0 * count, 6.1 * count), concurrency=count) for count in (1, 2, 4, 8, 16))
    [chart] = concurrency_chart([entry(1, ONE, rows=rows)])
    assert chart.places == ("1", "2", "4", "8", "16")
    assert [line.name for line in chart.lines] == ["TP=1 total", "TP=1 each request"]
    assert [dot.y for dot in chart.lines[0].dots] == pytest.approx([6.05, 12.1, 24.2, 48.4, 96.8])
    assert [dot.y for dot in chart.lines[1].dots] == pytest.approx([6.05] * 5)
    assert list(concurrency_chart([entry(1, ONE)])) == []


def test_memory_from_idle_to_measured(pair: list[Entry]) -> None:
    [chart] = moments_chart(pair)
    assert list(chart.places) == ["idle", "loaded", "ready", "measuring"]
    hosts = ("TP=1 spark1", "TP=2 spark1", "TP=2 spark2")
    assert [line.name for line in chart.lines] == [f"{host}{what}" for host in hosts for what in ("", " available")]
    assert [line.dots[-1].y for line in chart.lines[-2:]] == pytest.approx([102.0, 13.8], abs=0.01)
    [svg] = drawings(draw(chart, ""))
    assert {"TP=2 spark2", "measuring"} <= set(words(svg))


def test_power_and_clock_over_time_with_what_was_throttled() -> None:
    rows = (row(ONE, hosts=2), row(ONE, 16384, hosts=2, throttle=("power cap",)))
    charts = {chart.title.partition(" per")[0]: chart for chart in time_charts([entry(2, ONE, rows=rows)])}
    assert set(charts) == {"GPU memory", "Available memory", "GPU power", "SM clock", "GPU temperature"}
    power = charts["GPU power"]
    assert [line.name for line in power.lines] == ["spark1", "spark2"]
    assert {dot.y for dot in power.lines[0].dots} == {60.0}, "of the run, not of the rest before it"
    assert [dot.alarm for dot in power.lines[1].dots].count(True) == 3
    assert [dot.alarm for dot in power.lines[0].dots].count(True) == 0
    assert power.notes == ("spark2: throttled (power cap)",)
    assert "ringed: throttled" in power.subtitle
    assert power.lines[0].dots[-1].x == pytest.approx(163.84 + 40)


def test_every_reading_is_drawn_at_its_time() -> None:
    looks = {"t": [1000.0, 1002.0, 1004.0], "power_w": [12.0, 61.5, 60.0], "sm_clock_mhz": [2400, None, 2300]}
    sample = {"run": 0, "series": {"spark1": looks}, "most": {"spark1": {"throttle": ["power cap"]}}}
    one = entry(1, ONE, rows=(row(ONE, machine=(sample,)),))
    charts = {chart.title.partition(" per")[0]: chart for chart in time_charts([one])}
    dots = charts["GPU power"].lines[0].dots
    assert [(dot.x, dot.y, dot.alarm) for dot in dots] == [(0, 12.0, False), (2, 61.5, False), (4, 60.0, True)]
    assert [dot.y for dot in charts["SM clock"].lines[0].dots] == [2400, 2300], "what is not known is left out"


def test_a_sweep_of_numbers_and_one_of_words() -> None:
    steps = [sweep_step(4, 79.9, 80.0, 80.1), sweep_step(2, 67.4, 67.5, 67.6)]
    [chart] = sweep_chart(sweep_series(*steps), steps)
    assert (chart.places, [line.style for line in chart.lines]) == (("4", "2"), ["line"])
    words = [replace(one, label=label) for one, label in zip(steps, ("backend=ray", "backend=mp"), strict=True)]
    [chart] = sweep_chart(replace(sweep_series(), varied=("backend",)), words)
    assert (chart.places, [line.style for line in chart.lines]) == (("ray", "mp"), ["dots"])
    page = page_of(steps, (sweep_series(*steps),), "cluster 1")
    assert page.title == f"gemma-4-31b-fp8: {KEY} varied"
    assert (page.figures[0].value, page.figures[0].what) == ("80.0 t/s", "tg128 with num_speculative_tokens=4")
    assert page.banners == (), "what was varied on purpose is no warning"


def test_what_is_drawn_needs_no_luck() -> None:
    odd = (Line("_$x^$ 温度 <&>", (Dot(0, 1, 0.5), Dot(0, 1))), Line("", ()))
    [svg] = drawings(draw(Chart("t", "<s>", "", "", odd), ""))
    assert "_$x^$ 温度 <&>" in words(svg)
    assert svg.attrib["aria-label"] == "t. <s>"


def test_numbers_have_the_digits_that_can_be_distinguished() -> None:
    shown = [number(value) for value in (0, 0.254, 1.5, 6.52, 873.4, 12400)]
    assert shown == ["0", "0.25", "1.5", "6.5", "873", "12,400"]


def test_a_result_of_which_nothing_is_known_is_drawn_too() -> None:
    bare = Entry("server", replace(entry(1, ONE).result, rows=(row(ONE, machine=()),)))
    text = render(page_from(bare))
    assert "The machines" not in text
    assert "6.5 t/s" in text


SAMPLE = Path(__file__).parents[2] / "docs/samples/h200-compiled.json"


def test_sample_page_is_of_its_result() -> None:
    """A measurement on a real GPU over a simulated network, as the docs show it."""
    shown = SAMPLE.with_suffix(".html").read_text("utf-8")
    banner, dummy = page_from(Entry("TP=1", read_result(SAMPLE))).banners
    assert (banner[:14], dummy[:13]) == ("SIMULATED WIRE", "DUMMY WEIGHTS")
    assert 0 < shown.index("SIMULATED WIRE") < shown.index("<table")
    for text in ("NVIDIA H200, 143771 MiB, 700 W", "82.43 ± 0.01", "10,955.96", "vLLM 0.24.0"):
        assert text in shown.replace("10955.96", "10,955.96"), text
