"""The page: needs nothing else, says what must be said first, draws what was measured."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from report_tools import entry, row
from test_report_sweep import SEED, series

from cluster.bench.charts import (
    Bars,
    Chart,
    Dot,
    Line,
    concurrency_chart,
    depth_charts,
    moments_chart,
    number,
    numeric,
    sweep_chart,
    time_charts,
)
from cluster.bench.compare import Entry, moments_table
from cluster.bench.page import WITHOUT_CHARTS, page_of, render
from cluster.bench.plot import NAMES, NO_MARKERS, draw

ONE, TWO = (6.4, 6.5, 6.6), (11.0, 11.2, 11.4)


@pytest.fixture
def pair() -> list[Entry]:
    return [entry(1, ONE), entry(2, TWO)]


@pytest.fixture(scope="module")
def page() -> str:
    """The pair's page, drawn once: that takes seconds."""
    return render(page_of([entry(1, ONE), entry(2, TWO)], (), "cluster 1"))


def drawings(text: str) -> list[ElementTree.Element]:
    """Every SVG of a page, read as XML."""
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def caps(svg: ElementTree.Element) -> int:
    """How many ends of error bars are drawn: short lines across, each placed by its definition's name."""
    across = {
        f"#{path.attrib['id']}"
        for path in svg.iter("path")
        if "id" in path.attrib and re.fullmatch(r"M 4 0\s+L -4 -?0\s*", path.attrib["d"])
    }
    return len([use for use in svg.iter("use") if use.attrib["href"] in across])


def words(svg: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in svg.iter("text")]


def test_the_page_needs_no_network_and_no_script(page: str) -> None:
    assert not re.search(r"https?://|<script|<link|<img|@import|url\((?!#)|src=|href=(?!\"#)", page)
    assert len(page) < 200_000
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids)), "drawings share no name"
    assert drawings(page), "every drawing is well-formed"


def test_every_color_is_one_of_the_page_which_has_a_light_and_a_dark_one(page: str) -> None:
    light, dark = page.split("@media (prefers-color-scheme:dark)")
    assert [name for name in NAMES if f"--{name}:" not in light or f"--{name}:" not in dark[:600]] == []
    painted = {
        found for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL) for found in re.findall(r"#[0-9a-f]{6}\b", svg)
    }
    assert painted == set()


def test_the_same_measurements_make_the_same_page(pair: list[Entry], page: str) -> None:
    assert render(page_of(pair, (), "cluster 1")) == page


def test_without_matplotlib_the_page_has_its_tables_and_says_what_adds_charts(
    pair: list[Entry], page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "spark-cluster[report]" not in page
    monkeypatch.delitem(sys.modules, "cluster.bench.plot")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = render(page_of(pair, (), "cluster 1"))
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


def test_simulated_dummy_failed_and_interrupted_stand_on_top() -> None:
    from cluster.bench.result import HostState

    hosts = (HostState("spark1", "head", "NVIDIA DGX Spark (simulated)"),)
    one = entry(1, ONE, hosts=hosts, weights="dummy")
    rows = (replace(one.result.rows[0], failed=1), *one.result.rows[1:])
    one = replace(one, result=replace(one.result, rows=rows, complete=False))
    text = render(page_of([one], (), "cluster 1"))
    top = text[: text.index("<figure")]
    assert [word for word in ("SIMULATED HOSTS", "DUMMY WEIGHTS", "FAILED", "INTERRUPTED") if word not in top] == []


def test_what_may_not_be_compared_is_said_and_has_no_speed_up(pair: list[Entry]) -> None:
    page = page_of([pair[0], entry(2, TWO, seed=5)], (), "cluster 1")
    assert page.banners == ("NOT COMPARABLE: TP=2 and TP=1 differ in seed: 1 → 5",)
    assert not any("×" in one.value for one in page.figures)


def test_the_numbers_that_matter(pair: list[Entry]) -> None:
    page = page_of(pair, (), "cluster 1")
    assert [one.value for one in page.figures] == ["1.72×"] * 4
    assert page.figures[1].what == "token generation (tg128) at depth 16K, TP=2 beside TP=1"
    assert page.figures[0].detail.startswith("95 %: 1.6")
    same = page_of([pair[0], entry(2, (6.3, 6.5, 6.7))], (), "cluster 1")
    assert {one.faint for one in same.figures} == {True}, "not significant"


def test_generation_over_depth(pair: list[Entry]) -> None:
    generation, prompts, waits = depth_charts(pair)
    assert [line.name for line in generation.lines] == ["TP=1", "TP=2", "published TP=1", "published TP=2"]
    dot = generation.lines[1].dots[0]
    assert (dot.x, dot.y, dot.spread) == (0, pytest.approx(11.2), pytest.approx(0.2))
    assert [level.text for level in generation.levels] == ["ceiling TP=1: 8.8 t/s", "ceiling TP=2: 17.6 t/s"]
    assert generation.x_ticks == ((0, "0"), (16384, "16K"))
    assert prompts.levels == ()
    assert waits.y_title == "time to first token (ms)"
    [svg] = drawings(draw(generation, ""))
    names = {"TP=1", "TP=2", "published TP=1", "published TP=2"}
    shown = {"11.2", "6.5", "16K", "context depth (tokens)", "tokens per second (t/s)", "ceiling TP=2: 17.6 t/s"}
    assert names | shown <= set(words(svg))
    bare = tuple(replace(line, dots=tuple(replace(dot, spread=0.0) for dot in line.dots)) for line in generation.lines)
    [plain] = drawings(draw(replace(generation, lines=bare), ""))
    assert caps(svg) - caps(plain) == 12, "an error bar has two ends: four measured values, and two names"
    assert caps(plain) == 0


def test_numbers_in_another_depth_mode_are_not_drawn() -> None:
    other = [entry(1, ONE, depth_mode="prefix-caching"), entry(2, TWO, depth_mode="prefix-caching")]
    assert [line.name for line in next(depth_charts(other)).lines] == ["TP=1", "TP=2"]


def test_a_ceiling_far_above_is_told_in_words(pair: list[Entry]) -> None:
    low = [replace(one, reading=replace(one.reading, bytes=1e6)) for one in pair]
    chart = next(depth_charts(low))
    assert chart.levels == ()
    assert "ceiling of TP=1: 273,000 t/s, far above this plot" in chart.notes[0]


def test_throughput_over_concurrency() -> None:
    rows = tuple(row((6.0 * count, 6.1 * count), concurrency=count) for count in (1, 2, 4, 8, 16))
    chart = concurrency_chart([entry(1, ONE, rows=rows)])
    assert chart is not None
    assert chart.doubling
    assert [line.name for line in chart.lines] == ["TP=1 total", "TP=1 each request"]
    assert [dot.y for dot in chart.lines[0].dots] == pytest.approx([6.05, 12.1, 24.2, 48.4, 96.8])
    assert [dot.y for dot in chart.lines[1].dots] == pytest.approx([6.05] * 5)
    assert concurrency_chart([entry(1, ONE)]) is None


def test_memory_as_bars_from_idle_to_measured(pair: list[Entry]) -> None:
    chart = moments_chart(pair)
    assert chart is not None
    assert [text for _, text in chart.x_ticks] == ["idle", "loaded", "ready", "measuring"]
    assert [one.name for one in chart.bars] == ["TP=1 spark1", "TP=2 spark1", "TP=2 spark2"]
    assert (chart.bars[2].used[-1], chart.bars[2].available[-1]) == (102.0, pytest.approx(13.8, abs=0.01))
    [svg] = drawings(draw(chart, ""))
    assert {"TP=2 spark2", "103", "13.5", "measuring"} <= set(words(svg))


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
    assert power.lines[0].dots[-1].x == pytest.approx((163.84 + 40) / 60, abs=0.01), "minutes"


def test_every_look_is_drawn_at_its_time() -> None:
    looks = {"t": [1000.0, 1002.0, 1004.0], "power_w": [12.0, 61.5, 60.0], "sm_clock_mhz": [2400, None, 2300]}
    state = {"role": "head", "power_w": 60.0, "gpu_memory_mib": 1024}
    sample = {
        "run": 0,
        "before": {"spark1": state},
        "after": {"spark1": state},
        "series": {"spark1": looks},
        "most": {"spark1": state | {"gpu_memory_mib": 2048, "throttle": ["power cap"]}},
        "lost": [],
        "links": {"spark1": [{"link": "enp1s0f0np0", "sent_bytes": 1}]},
    }
    one = entry(1, ONE, rows=(row(ONE, machine=(sample,)),))
    charts = {chart.title.partition(" per")[0]: chart for chart in time_charts([one])}
    dots = charts["GPU power"].lines[0].dots
    assert [(dot.x, dot.y, dot.alarm) for dot in dots] == [(0, 12.0, False), (2, 61.5, False), (4, 60.0, True)]
    assert [dot.y for dot in charts["SM clock"].lines[0].dots] == [2400, 2300], "what was not told is left out"
    table = moments_table([one])
    assert table is not None
    assert table.rows[0][-1] == "? / 2.0", "the most of all looks"


def test_a_sweep_of_numbers_and_one_of_words() -> None:
    chart = sweep_chart(series(*SEED), SEED)
    assert chart is not None
    assert [tick for tick, _ in chart.x_ticks] == [2, 3, 4, 5, 6]
    assert chart.lines[0].style == "line"
    page = page_of(SEED, (series(*SEED),), "cluster 1")
    assert page.title == "gemma-4-31b-fp8: speculative_config.num_speculative_tokens varied"
    assert (page.figures[0].value, page.figures[0].what) == ("80.0 t/s", "tg128 with num_speculative_tokens=4")
    assert page.banners == (), "what was varied on purpose is no warning"
    assert numeric(["ray", "mp"]) == []


def test_what_is_drawn_needs_no_luck() -> None:
    odd = (Line("_$x^$ 温度 <&>", (Dot(0, 1, 0.5), Dot(0, 1))), Line("", ()))
    [svg] = drawings(draw(Chart("t", "<s>", "", "", odd), ""))
    assert "_$x^$ 温度 <&>" in words(svg)
    assert svg.attrib["aria-label"] == "t. <s>"
    nothing = Bars("spark1", (None, 4.0), (None, None))
    [svg] = drawings(draw(Chart("t", "", "", "", x_ticks=((0, "idle"), (1, "ready")), bars=(nothing,)), ""))
    assert {"idle", "ready", "spark1"} <= set(words(svg))


def test_many_looks_are_a_line_without_dots() -> None:
    def uses(count: int) -> int:
        line = Line("spark1", tuple(Dot(at, 1 + at % 7) for at in range(count)))
        [svg] = drawings(draw(Chart("t", "", "", "", (line,)), ""))
        return len(list(svg.iter("use")))

    assert uses(NO_MARKERS - 1) > NO_MARKERS - 1
    assert uses(NO_MARKERS) < 40, "ticks only"


def test_ticks_that_would_stand_on_each_other_have_no_words() -> None:
    depths = (0, 512, 1024, 32768, 65536)
    line = Line("TP=1", tuple(Dot(depth, 5) for depth in depths))
    [svg] = drawings(draw(Chart("t", "", "", "", (line,), tuple((depth, str(depth)) for depth in depths)), ""))
    assert {"0", "32768", "65536"} <= set(words(svg))
    assert not {"512", "1024"} & set(words(svg))


def test_numbers_have_the_digits_that_can_be_told_apart() -> None:
    shown = [number(value) for value in (0, 0.254, 1.5, 6.52, 873.4, 12400)]
    assert shown == ["0", "0.25", "1.5", "6.5", "873", "12,400"]


def test_a_result_of_which_nothing_is_known_is_drawn_too() -> None:
    bare = Entry("server", replace(entry(1, ONE).result, rows=(row(ONE, machine=()),)))
    text = render(page_of([bare], (), "cluster 1"))
    assert "The machines" not in text
    assert "6.5 t/s" in text
