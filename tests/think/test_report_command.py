"""`cluster report` as typed: which files it takes, what it writes, how it refuses files it cannot read."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from report_tools import ONE, TWO, entry, sweep_series

from cluster.bench.result import store
from cluster.cli.main import main


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of results: two sizes, and the scaling that made them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    folder = tmp_path / "results"
    folder.mkdir()
    entries = []
    for tp, rates in ((1, ONE), (2, TWO)):
        one = entry(tp, rates)
        assert one.point
        name = f"2026112{tp}-tp{tp}.json"
        store(folder / name, one.result.document())
        entries.append(replace(one, point=replace(one.point, result=name)))
    store(folder / "20261120-scaling.series.json", sweep_series(*entries, kind="scaling", key="tp").document())
    return folder


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(("report", *words))
    ran = capsys.readouterr()
    return code, ran.out, ran.err


def test_all_forms_at_once(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("20261120-scaling.series.json", "results/20261122-tp2.json")
    code, out, err = typed(capsys, *files, *(f"-or.{end}" for end in ("html", "md", "csv", "json")))
    assert (code, out) == (0, "")
    assert err.count("written: ") == 4
    assert "1.72×" in Path("r.html").read_text()
    assert "| token generation | tg128 | 6.50 ± 0.10 | 11.20 ± 0.20 | 1.72× |" in Path("r.md").read_text()
    rows = list(csv.DictReader(Path("r.csv").read_text().splitlines()))
    rates = {(one["label"], one["tp"]): float(one["t_s_mean"]) for one in rows if one["test_name"] == "tg128"}
    assert rates == {("TP=1", "1"): pytest.approx(6.5), ("TP=2", "2"): pytest.approx(11.2)}
    document = json.loads(Path("r.json").read_text())
    assert [one["benchmarks"][0]["tg_throughput"]["mean"] for one in document["reports"]] == pytest.approx([6.5, 11.2])
    _, out, _ = typed(capsys, files[1], "--json")
    assert json.loads(out)["benchmarks"], "one result is as llama-benchy writes it"


def test_without_files_the_newest_with_its_series(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = typed(capsys)
    assert code == 0
    assert out.startswith("# gemma-4-31b-fp8: TP=1 and TP=2\n")
    assert "## steps" in out
    assert err.rstrip().endswith("results/20261120-scaling.html")
    assert (kept / "20261120-scaling.html").exists()


def test_without_a_series_the_newest_with_its_baseline(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kept / "20261120-scaling.series.json").write_text("{}")
    code, out, _ = typed(capsys)
    assert code == 0
    assert "1.72×" in out
    assert "## steps" not in out
    assert (kept / "20261122-tp2.html").exists()


def test_two_series_have_columns_of_their_own(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("20261121-tp1.json", "20261122-tp2.json"):
        (kept / f"copy-{name}").write_text((kept / name).read_text())
    text = (kept / "20261120-scaling.series.json").read_text()
    (kept / "copy.series.json").write_text(text.replace('"2026112', '"copy-2026112'))
    _, out, _ = typed(capsys, "20261120-scaling.series.json", "copy.series.json", "--json")
    tables = {table["title"]: table["rows"] for table in json.loads(out)["tables"]}
    [row, *_] = tables["scaling: TP=2 (copy-20261122-tp2.json) beside TP=1 (20261121-tp1.json)"]
    assert row["TP=1 (20261121-tp1.json)"] == "6.50 ± 0.10"
    assert row["TP=2 (copy-20261122-tp2.json)"] == "11.20 ± 0.20"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("nowhere.json",), "[file-not-found]"),
        (("results/broken.json",), "[result-invalid]"),
        (("results/later.json",), "[result-too-new]"),
        (("20261122-tp2.json", "-o", "x.pdf"), "[file-type-unknown]"),
        (("20261122-tp2.json", "-o", "no/such/folder/x.html"), "[file-not-written]"),
        (("empty.series.json",), "[no-results]"),
        (("--results", "none"), "[no-results]"),
    ],
)
def test_what_cannot_be(kept: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], what: str) -> None:
    (kept / "broken.json").write_text("{")
    (kept / "later.json").write_text('{"schema": 99}')
    store(kept / "empty.series.json", sweep_series().document())
    code, out, err = typed(capsys, *words)
    assert (code, out, what in err) == (2, "", True), err


SERIES = "benchmarks.0.machine.0.series.spark1"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("benchmarks.0.machine", None),
        ("benchmarks.0.machine.0.before.spark1.power_w", "much"),
        (f"{SERIES}.t.0", None),
        (f"{SERIES}.power_w", []),
        ("benchmarks.0.ttfr.std", "x"),
        ("benchmarks.0.tg_throughput.values", None),
        ("benchmarks.0.tg_throughput", "6.5"),
        ("benchmarks.0.failures", 1),
        ("benchmarks.0.server", {"requests": "many"}),
        ("benchmarks.0", None),
        ("manifest.hosts.0", "spark1"),
        ("manifest.tp", "2"),
        ("manifest.spec.recipe", ""),
        ("manifest.spec.recipe", {"vllm": 1}),
        ("timestamp", 7),
        ("latency_ms", "x"),
        *(("schema", value) for value in (-1, 0, 1.5, "x", True, None)),
    ],
)
def test_an_edited_result_is_refused_by_its_key(
    kept: Path, capsys: pytest.CaptureFixture[str], key: str, value: object
) -> None:
    document = json.loads((kept / "20261122-tp2.json").read_text())
    *path, last = (int(part) if part.isdecimal() else part for part in key.split("."))
    place = document
    for part in path:
        place = place[part]
    place[last] = value
    (kept / "edited.json").write_text(json.dumps(document))
    code, out, err = typed(capsys, "edited.json")
    assert (code, out, "[result-invalid]" in err) == (2, "", True), err
    assert key.removesuffix(".power_w").removesuffix(".values") in err


@pytest.mark.parametrize("number", [-1, 0, 1.5, "x"])
def test_a_form_of_series_that_never_was(kept: Path, capsys: pytest.CaptureFixture[str], number: object) -> None:
    document = sweep_series().document() | {"series": number}
    (kept / "x.series.json").write_text(json.dumps(document))
    code, _, err = typed(capsys, "x.series.json")
    assert (code, "series: expected a whole number" in err) == (2, True), err


@pytest.mark.parametrize(
    ("output", "kept_as_it_was"),
    [
        ("results/20261122-tp2.json", True),
        ("results/20261121-tp1.json", True),
        ("results/20261120-scaling.series.json", True),
        ("link.json", True),
        ("earlier.json", False),
        ("other.json", False),
    ],
)
def test_no_measurement_is_overwritten(
    kept: Path, capsys: pytest.CaptureFixture[str], output: str, kept_as_it_was: bool
) -> None:
    typed(capsys, "20261122-tp2.json", "-o", "earlier.json")
    Path("link.json").symlink_to(kept / "20261122-tp2.json")
    Path("other.json").write_text("[]")
    before = Path(output).read_bytes()
    code, _, err = typed(capsys, "20261122-tp2.json", "-o", "first.md", "-o", output)
    assert (code, "[file-exists]" in err) == ((2, True) if kept_as_it_was else (0, False)), err
    assert Path(output).read_bytes() == before or not kept_as_it_was
    assert Path("first.md").exists() != kept_as_it_was, "nothing is written"


@pytest.mark.parametrize("end", ["html", "md", "csv"])
def test_names_in_a_result_stay_text(kept: Path, capsys: pytest.CaptureFixture[str], end: str) -> None:
    """No code for a browser, nothing that moves a terminal's cursor; names in other scripts as they are."""
    text = (kept / "20261122-tp2.json").read_text()
    (kept / "odd.json").write_text(text.replace('"gemma-4-31b-fp8"', '"<script>x</script>\\u001b[31m\\u009b1m 模型"'))
    assert typed(capsys, "odd.json", "-o", f"x.{end}")[0] == 0
    shown = Path(f"x.{end}").read_text()
    assert "模型" in shown
    assert not {"\x1b", "\x9b"} & {*shown}
    assert ("<script>x" in shown) == (end == "csv")
    printed = typed(capsys, "odd.json")[1]
    assert not {"\x1b", "\x9b"} & {*printed}


def test_a_newest_file_that_cannot_be_read_is_told(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("20261122-tp2.json", "20261121-tp1.json"):
        (kept / name.replace("-", "T120000.0Z-")).write_text((kept / name).read_text())
    (kept / "20281129T000000.000001Z-x-tp1.json").mkdir()
    (kept / "20291129T000000.000001Z-x-tp1.json").write_text("{")
    (kept / "report.json").write_text("{}")
    code, _, err = typed(capsys)
    assert (code, err.count("passed over: ")) == (0, 2), err
    assert "passed over: results/20281129T000000.000001Z-x-tp1.json: " in err.replace(f"{kept.parent}/", "")
