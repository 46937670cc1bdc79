"""Results on disk, which of them may be compared, and what must be read before their numbers."""

import json
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from bench_results import SPARK, manifest, result, row
from bench_tools import trace

from cluster.bench.measure import measure_batch
from cluster.bench.result import (
    HostState,
    Journal,
    Result,
    differences,
    find_baseline,
    parse_result,
    read_result,
    results_dir,
    store,
    warnings,
)
from cluster.bench.rows import Shape, summarise
from cluster.bench.tables import bench_table
from cluster.bench.target import solo_command
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
    assert parse_result(orjson.loads(orjson.dumps(old.document()))).rows == old.rows


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "result-invalid"),
        ("5", "result-invalid"),
        ("[]", "result-invalid"),
        ("{}", "result-invalid"),
        ('{"schema": 2}', "result-invalid"),
        ('{"schema": 99}', "result-too-new"),
        (None, "file-unreadable"),
    ],
)
def test_other_files_are_no_results(tmp_path: Path, text: str | None, code: str) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ClusterError) as caught:
        read_result(path)
    assert (caught.value.code, str(path) in caught.value.what) == (code, True)


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
        ("hosts", (HostState("spark1", "head", f"{SPARK} (simulated)", "580.95.05"),)),
        ("hosts", (HostState("spark1", "head", SPARK, "590.1"),)),
        ("natural_stop", True),
        ("api", "/v1/chat/completions"),
        ("est_ppt_from", ("server (timings.prompt_ms)",)),
    ],
)
def test_other_conditions_forbid_the_comparison(key: str, value: object) -> None:
    found = differences(manifest(1, **{key: value}), manifest(2))
    assert any(item.must_agree for item in found), found


H200 = "NVIDIA H200, 143771 MiB, 700 W"


@pytest.mark.parametrize(
    ("one", "two", "agree"),
    [
        ((H200,), (H200,), True),
        ((), (H200,), True),  # a result of before GPUs were written down
        ((H200,), ("NVIDIA GB10",), False),
        ((H200,), ("NVIDIA H200, 143771 MiB, 350 W",), False),
        ((H200,), (H200, H200), False),
    ],
)
def test_gpus_must_agree(one: tuple[str, ...], two: tuple[str, ...], agree: bool) -> None:
    first, second = (manifest(1, hosts=(HostState("spark1", gpus=gpus),)) for gpus in (one, two))
    assert all(item.key != "gpus" for item in differences(first, second)) == agree


def test_a_real_gpu_over_a_simulated_wire_has_words_of_its_own() -> None:
    said = {}
    for product in ("NVIDIA DGX Spark (simulated)", "real GPU, simulated wire (lab)"):
        [said[product]] = warnings(Result(manifest(1, hosts=(HostState("spark1", product=product),)), ()))
    assert [line.partition(" (")[0] for line in said.values()] == ["SIMULATED HOSTS", "SIMULATED WIRE"]


def test_differing_flag_is_named_by_its_key_and_a_port_is_not() -> None:
    other = {"tp": 1, "pp": 1, "recipe": {"port": 9000, "vllm": {"a": 2}}}
    found = differences(manifest(1, spec=other, est_ppt_from=()), manifest(2))
    assert [str(item) for item in found if item.must_agree] == ["spec.recipe.vllm.a: 2 → 1"]


@pytest.mark.parametrize(
    ("given", "made", "home", "expected"),
    [
        ("there", False, "XDG_STATE_HOME", "there"),
        ("", True, "XDG_STATE_HOME", "results"),
        ("", False, "XDG_STATE_HOME", "cluster/results"),
        ("", False, "HOME", ".local/state/cluster/results"),
    ],
)
def test_results_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, made: bool, home: str, expected: str
) -> None:
    if made:
        (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv(home, str(tmp_path))
    assert results_dir(str(tmp_path / given) if given else None) == tmp_path / expected


def test_journal_keeps_rows_and_then_the_result(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new", manifest())
    early, late = row(Shape(64, 8, 0), rates=(50.0,)), row(Shape(64, 8, 0), rates=(50.0, 51.0))
    other = row(Shape(64, 8, 4096), rates=(50.0,))
    for one in (early, other, late):
        journal.add(one)
    with journal.partial.open("ab") as file:
        file.write(b'{"concurrency": 1, "cont')  # half a line, as a kill leaves it
    left = read_result(journal.partial)
    assert (left.rows, left.complete) == ((late, other), False)
    path = journal.finish(replace(result(), timestamp=journal.timestamp))
    assert read_result(path).complete
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]
    assert path.name.endswith("-gemma-4-31b-fp8-tp2.json")


def test_read_only_directory(plain_user: Path) -> None:
    plain_user.chmod(0o500)
    with pytest.raises(UsageError) as caught:
        Journal(plain_user, manifest())
    assert caught.value.code == "file-not-written"


def test_baseline_is_the_one_with_most_of_the_rows_then_the_newest_that_agrees(tmp_path: Path) -> None:
    def keep(name: str, tp: int = 1, rows: int = 4, **changes: object) -> None:
        one = result(tp, **changes)
        store(tmp_path / f"{name}.json", replace(one, rows=one.rows[:rows], timestamp=name).document())

    keep("a")
    keep("b")
    keep("c", seed=2)
    keep("d", recipe="another")
    keep("e", tp=2)
    keep("f", rows=1)
    (tmp_path / "junk.json").write_text("{")
    found, refused = find_baseline(tmp_path, result(2))
    assert found
    assert found[0].name == "b.json"
    assert refused == ["not compared with c.json: seed: 2 → 1"]
    assert find_baseline(tmp_path / "not there", result(2)) == (None, [])


def test_what_must_be_read_first() -> None:
    host = replace(result().manifest.hosts[0], product=f"{SPARK} (simulated)")
    there = replace(result().manifest, hosts=(host,), weights="dummy", refused_fields=("min_tokens",))
    lines = warnings(replace(result(), manifest=there, complete=False))
    assert [line.split(":")[0].split(" (")[0] for line in lines] == [
        "SIMULATED HOSTS",
        "DUMMY WEIGHTS",
        "INTERRUPTED",
        "the server refused min_tokens",
    ]
    assert warnings(result()) == ()
    missed = replace(result().rows[2], cache={"hit": 2, "miss": 1}, phase="cached")
    hit = replace(result().rows[3], cache={"hit": 3}, phase="cached")
    waiting = row(Shape(512, 128, 0, 8), queued=4)
    lines = warnings(replace(result(), rows=(missed, hit, waiting)))
    assert [line.partition(":")[0] for line in lines] == [
        "QUEUED in pp512 tg128 (c8)",
        "NO VERIFIED CACHE HIT in pp2048 tg32 @ d4096",
    ]


def test_failures_are_seen_in_their_row_and_above() -> None:
    batches = [measure_batch([trace(way, 32, 512)], 0.0, 512) for way in ("plain", "half", "plain")]
    some = replace(result(), rows=(summarise(Shape(512, 32, 0), batches),))
    assert bench_table(some).rows[0][-1] == "1/3"
    assert any(note.startswith("failed: 1 × the server closed") for note in bench_table(some).notes)
    assert warnings(some) == ("1 of 3 requests FAILED; the numbers are those of the others",)


def test_number_of_some_runs_only_is_marked() -> None:
    batches = [measure_batch([trace("plain", tokens, 512)], 0.0, 512) for tokens in (128, 32, 128)]
    notes = bench_table(replace(result(), rows=(summarise(Shape(512, 32, 0), batches),))).notes
    assert "peak_throughput from 2 values only, n/a elsewhere: less than 1 s of tokens [pp512 tg32]" in notes


def test_context_rows_have_llama_benchys_names() -> None:
    context = row(Shape(2048, 128, 4096, 1, "context"))
    lines = bench_table(replace(result(), rows=(context,))).rows
    assert [line[1] for line in lines] == ["ctx_pp @ d4096", "ctx_tg @ d4096"]


def test_baseline_has_keys_of_what_the_recipe_leaves_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.yaml").write_text("model: toy/toy\nrevision: main\nimage: toy\n")
    spec = {"recipe": {"model": "toy/toy", "vllm": {"max-num-seqs": 8}}}
    words = solo_command(manifest(recipe="plain.yaml", spec=spec)).split()
    assert words[:7] == ["cluster", "up", "plain.yaml", "--solo", "-n", "spark1", "--set"]
    assert words[7:] == ["vllm.max-num-seqs=8"]
