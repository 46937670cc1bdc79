"""Results on disk, and which of them may be compared."""

import dataclasses
import json
from pathlib import Path

import orjson
import pytest
from bench_results import manifest, result, row

from cluster.bench.result import (
    HostState,
    Journal,
    differences,
    find_baseline,
    parse_result,
    read_result,
    results_dir,
    write_result,
)
from cluster.bench.rows import Shape
from cluster.bench.tables import bench_table
from cluster.errors import ClusterError, UsageError


def test_document_and_back() -> None:
    there = result(argv={"spark1": ["vllm", "serve"]}, refused_fields=("min_tokens",))
    assert parse_result(json.loads(orjson.dumps(there.document()))) == there


def test_llama_benchy_reads_our_file() -> None:
    BenchmarkReport = pytest.importorskip("llama_benchy.results").BenchmarkReport

    read = BenchmarkReport.model_validate(json.loads(orjson.dumps(result().document())))
    assert read.model == "google/gemma-4-31B-it"
    assert len(read.benchmarks) == 4
    assert not read.prefix_caching_enabled


def test_sizes_may_differ_and_nothing_else_does() -> None:
    found = differences(manifest(1), manifest(2))
    assert [item.key for item in found if item.must_agree] == []
    assert {item.key for item in found} == {"tp", "nodes", "backend"}
    assert str(found[-1]) == "tp: 1 → 2"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 2),
        ("depth_mode", "prefix-caching"),
        ("weights", "dummy"),
        ("versions", {"vllm": "0.20.0"}),
        ("image_content", "b" * 64),
        ("refused_fields", ("min_tokens",)),
        ("client_on", "local"),
        ("corpus", "0" * 16),
        ("hosts", (HostState("spark1", "head", "NVIDIA DGX Spark (simulated)", "580.95.05"),)),
        ("hosts", (HostState("spark1", "head", "NVIDIA DGX Spark", "590.1"),)),
        ("natural_stop", True),
        ("api", "/v1/chat/completions"),
    ],
)
def test_other_conditions_forbid_the_comparison(key: str, value: object) -> None:
    found = differences(manifest(1, **{key: value}), manifest(2))
    assert any(item.must_agree for item in found), found


def test_differing_flag_is_named_by_its_key_and_a_port_is_not() -> None:
    other = {"tp": 1, "pp": 1, "recipe": {"port": 9000, "vllm": {"a": 2}}}
    assert [str(item) for item in differences(manifest(1, spec=other), manifest(2)) if item.must_agree] == [
        "spec.recipe.vllm.a: 2 → 1"
    ]


@pytest.mark.parametrize(
    ("given", "made", "home", "expected"),
    [
        ("there", False, "XDG_STATE_HOME", "there"),
        ("", True, "XDG_STATE_HOME", "results"),
        ("", False, "XDG_STATE_HOME", "cluster/results"),
        ("", False, "HOME", ".local/state/cluster/results"),
    ],
)
def test_results_directory(tmp_path: Path, given: str, made: bool, home: str, expected: str) -> None:
    if made:
        (tmp_path / "results").mkdir()
    where = results_dir(str(tmp_path / given) if given else "", tmp_path, {home: str(tmp_path)})
    assert where == tmp_path / expected


def test_journal_keeps_rows_and_then_the_result(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new", manifest())
    early, late = row(Shape(64, 8, 0), rates=(50.0,)), row(Shape(64, 8, 0), rates=(50.0, 51.0))
    other = row(Shape(64, 8, 4096), rates=(50.0,))
    for one in (early, other, late):
        journal.add(one)
    left = read_result(journal.partial)
    assert left.rows == (late, other)
    assert not left.complete
    path = journal.finish(dataclasses.replace(result(), timestamp=journal.timestamp))
    assert read_result(path).complete
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]
    assert path.name.endswith("-gemma-4-31b-fp8-tp2.json")


def test_half_a_line_of_a_killed_measurement_does_not_lose_the_others(tmp_path: Path) -> None:
    journal = Journal(tmp_path, manifest())
    journal.add(row(Shape(64, 8, 0)))
    with journal.partial.open("ab") as file:
        file.write(b'{"concurrency": 1, "cont')
    assert len(read_result(journal.partial).rows) == 1


def test_abandoned_measurement_leaves_only_what_was_measured(tmp_path: Path) -> None:
    Journal(tmp_path, manifest()).abandon()
    assert list(tmp_path.iterdir()) == []
    journal = Journal(tmp_path, manifest())
    journal.add(row(Shape(64, 8, 0)))
    journal.abandon()
    assert journal.partial.exists()


def test_read_only_directory(plain_user: Path) -> None:
    plain_user.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be written"):
        Journal(plain_user, manifest())


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "zero-length"), ("[]", "not a JSON object"), ("{}", "no schema"), ('{"schema": 99}', "schema 99")],
)
def test_other_files_are_no_results(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ClusterError, match=words) as caught:
        read_result(path)
    assert str(path) in caught.value.what


def store(directory: Path, name: str, **changes: object) -> Path:
    """A stored single-node result."""
    stamp = changes.pop("timestamp", "2026-11-27 00:00:00Z")
    path = directory / f"{name}.json"
    write_result(dataclasses.replace(result(1, **changes), timestamp=stamp), path)
    return path


def test_baseline_is_the_newest_that_agrees(tmp_path: Path) -> None:
    store(tmp_path, "a", timestamp="2026-11-25 00:00:00Z")
    good = store(tmp_path, "b", timestamp="2026-11-26 00:00:00Z")
    other_seed = store(tmp_path, "c", seed=2)
    store(tmp_path, "d", recipe="another")
    write_result(result(2), tmp_path / "e.json")
    (tmp_path / "junk.json").write_text("{")
    found = find_baseline(tmp_path, manifest(2))
    assert found.path == good
    assert [path for path, _ in found.refused] == [other_seed]
    assert [item.key for item in found.refused[0][1]] == ["seed"]
    assert {item.key for item in found.differences} == {"tp", "nodes", "backend"}
    assert find_baseline(tmp_path / "not there", manifest(2)).result is None


def test_baseline_with_more_of_the_rows_is_preferred(tmp_path: Path) -> None:
    full = store(tmp_path, "a", timestamp="2026-11-25 00:00:00Z")
    short = dataclasses.replace(result(1), rows=result(1).rows[:1], timestamp="2026-11-27 00:00:00Z")
    write_result(short, tmp_path / "b.json")
    shapes = [one.shape for one in result().rows]
    assert find_baseline(tmp_path, manifest(2), shapes=shapes).path == full


def test_written_file_is_whole_or_absent(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="cannot be written"):
        write_result(result(), tmp_path / "no" / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_result_of_the_first_schema_still_reads() -> None:
    """Written by the first version of `cluster bench`; two hosts, failures none, concurrency 1 and 2."""
    old = read_result(Path(__file__).parents[1] / "samples" / "result_schema_1.json")
    assert (old.manifest.tp, old.manifest.depth_mode, len(old.rows)) == (2, "cold", 4)
    first = old.rows[0]
    assert first.shape == Shape(256, 32, 0, 1)
    assert first.tg_throughput is not None
    assert first.tg_throughput.mean == pytest.approx(200, rel=0.3)
    assert first.machine[0]["after"]["spark2"]["throttle"] == ["power cap"]
    assert (first.server, first.notes) == (None, ())
    assert bench_table(old).rows
    again = parse_result(orjson.loads(orjson.dumps(old.document())))
    assert again.rows == old.rows


def test_prompts_timed_by_different_clocks_are_not_compared() -> None:
    ours, theirs, untold = (
        dataclasses.replace(manifest(tp), est_ppt_from=clocks)
        for tp, clocks in ((1, ("first token − latency",)), (2, ("server (timings.prompt_ms)",)), (2, ()))
    )
    assert [item.key for item in differences(ours, theirs) if item.must_agree] == ["est_ppt_from"]
    assert not [item.key for item in differences(ours, untold) if item.must_agree]
