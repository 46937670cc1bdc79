"""The packaged recipes hold what was published, and `recipes check` finds what a model cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.cli.fit import reference_rate
from cluster.cli.recipes import problems_of
from cluster.config.find import recipe_files
from cluster.config.load import load_recipe
from cluster.deploy.rank import SETTINGS

RECIPE = "model: a/b\nimage: x:1\n"


def test_the_reference_recipe() -> None:
    recipe = load_recipe("gemma-4-31b-fp8").recipe
    assert recipe.model == "google/gemma-4-31B-it"
    assert recipe.vllm["quantization"] == recipe.vllm["kv-cache-dtype"] == "fp8"
    assert recipe.env == {"VLLM_DISABLE_COMPILE_CACHE": "1", "VLLM_ENGINE_READY_TIMEOUT_S": "1800"}
    assert ":" in recipe.image
    assert "latest" not in recipe.image
    assert set(recipe.memory.per_host_gib) == {1, 2}
    share = float(str(recipe.vllm["gpu-memory-utilization"])) * 121.6
    assert all(share < need < 121.6 for need in recipe.memory.per_host_gib.values())


def test_its_reference_numbers_give_the_published_speed_up() -> None:
    first = load_recipe("gemma-4-31b-fp8").recipe.reference[0]
    assert first.depth_mode == "cold"
    rows = {(row.test, row.tp): row for row in first.rows}
    for test, ratio in (("tg128", 1.7), ("tg128 @ d4096", 1.6), ("tg128 @ d16384", 1.7), ("pp2048", 1.4)):
        one, two = rows[test, 1].t_s, rows[test, 2].t_s
        assert one is not None
        assert two is not None
        assert round(two / one, 1) == ratio
    assert (rows["pp2048 @ d16384", 1].ttfr_ms, rows["pp2048 @ d16384", 2].ttfr_ms) == (22669, 13432)
    assert first.vram_mb == {"head": 105721, "worker": 103161}
    tests = [(reference.source, row.test, row.tp) for reference in (first,) for row in reference.rows]
    assert len(set(tests)) == len(tests)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("vllm: {tensor-parallel-size: 2}", "vllm.tensor-parallel-size: is given by cluster; use --tp"),
        ("vllm: {tensor_parallel_size: 2}", "vllm.tensor-parallel-size: is given by cluster; use --tp"),
        ("vllm: {tp: 2}", "vllm.tp: is given by cluster; use --tp"),
        ("vllm: {port: 9000}", "vllm.port: is given by cluster; use the recipe's key `port`"),
        (
            "vllm: {distributed-executor-backend: mp}",
            "vllm.distributed-executor-backend: is given by cluster; use --backend",
        ),
        ("vllm: {allowed-origins: []}", "vllm.allowed-origins is an empty list"),
        ("name: other", "name: found `other`, but the file's name is what `up` looks for: r"),
        ("env: {HF_HOME: /x}", f"env.HF_HOME: is set by cluster to `{SETTINGS['HF_HOME']}` in every container"),
        ("mounts: [{source: no.py, target: /x}]", "mounts.0.source: there is no file `{folder}/no.py`"),
        ("bakend: mp", "bakend: is no key here; nearest: backend"),
    ],
)
def test_what_check_finds(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"{RECIPE}{text}\n")
    (found,) = problems_of(path)
    assert found.startswith(str(path))
    assert found.removeprefix(str(path)).lstrip(":0123456789 ") == problem.format(folder=tmp_path)


@pytest.mark.parametrize("name", recipe_files())
def test_the_default_bench_asks_no_more_than_the_server_computes(name: str) -> None:
    recipe = load_recipe(name).recipe
    assert max(recipe.bench.concurrency) <= int(str(recipe.vllm.get("max-num-seqs", 256)))


def test_forced_marlin_is_not_ready_without_it() -> None:
    """A variable that a vLLM does not know is ignored; lines as vLLM 0.19 and later versions write them."""
    require = load_recipe("gemma-4-31b-nvfp4-marlin").recipe.expect_log.require
    assert set(load_recipe("gemma-4-31b-nvfp4").recipe.expect_log.require) < set(require)
    for line, held in (
        ("Using NvFp4LinearBackend.MARLIN for NVFP4 GEMM", True),
        ("Using MarlinNvFp4LinearKernel for NVFP4 GEMM", True),
        ("Using NvFp4LinearBackend.FLASHINFER_CUTLASS for NVFP4 GEMM", False),
        ("Using 'MARLIN' NvFp4 MoE backend", False),
    ):
        assert any(re.search(pattern, line) for pattern in require) is held


@pytest.mark.parametrize(
    ("name", "tp", "rate"),
    [
        ("gemma-4-31b-fp8", 1, 6.5),
        ("gemma-4-31b-fp8", 2, 11.2),
        ("gemma-4-31b-nvfp4", 1, 6.8),
        ("gemma-4-26b-a4b-fp8", 1, 35),
        ("gemma-4-26b-a4b-nvfp4", 1, 51),
        ("gemma-4-31b-awq", 1, None),
        ("gemma-4-31b-nvfp4-marlin", 1, None),
    ],
)
def test_the_reference_is_the_first_published_number(name: str, tp: int, rate: float | None) -> None:
    assert reference_rate(load_recipe(name).recipe, tp) == rate
