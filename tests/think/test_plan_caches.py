"""Which deployments share a directory of compiled kernels."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from golden_plans import INSIDE
from plan_tools import one_cable, recipe, seen, spec_for, wanted

from cluster.deploy.rank import Ingredients, cache_name, container
from cluster.spark.fabric import pair

RECIPE = {"vllm": {"max-model-len": 4096, "gpu-memory-utilization": 0.8, "tool-call-parser": "gemma4"}}
SPEC = spec_for(wanted(of=recipe(**RECIPE)))


def changed(path: str, value: Any) -> dict[str, Any]:
    """The spec with one part changed: `recipe.vllm.quantization`."""
    *within, last = path.split(".")
    spec = deepcopy(SPEC)
    inner = spec
    for part in within:
        inner = inner[part]
    inner[last] = value
    return spec


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("recipe.port", 9000),
        ("recipe.served_model_name", "gemma"),
        ("bind", "127.0.0.1"),
        ("secrets", ["HF_TOKEN"]),
        ("hosts", ["spark2", "spark1"]),
        ("recipe.vllm.gpu-memory-utilization", 0.5),
        ("recipe.vllm.tool-call-parser", "hermes"),
        ("recipe.vllm.enable-prefix-caching", True),
    ],
)
def test_what_vllm_does_not_compile_shares_a_directory(path: str, value: Any) -> None:
    assert cache_name(changed(path, value)) == cache_name(SPEC)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("recipe.model", "example/other"),
        ("recipe.revision", "c0ffee"),
        ("recipe.env", {"A": "1"}),
        ("tp", 1),
        ("image_content", "2e" * 32),
        ("mounts", {"/x.py": "aa"}),
        ("env", {"B": "2"}),
        ("words", ["--dtype", "half"]),
        ("recipe.vllm.max-model-len", 8192),
        ("recipe.vllm.max-num-seqs", 8),
        ("recipe.vllm.kv-cache-dtype", "fp8"),
        ("recipe.vllm.a-flag-nobody-knows", 1),
        ("dockerfile", "ab" * 32),
    ],
)
def test_what_decides_the_kernels_has_a_directory_of_its_own(path: str, value: Any) -> None:
    name = cache_name(changed(path, value))
    assert name != cache_name(SPEC)
    assert name.startswith("toy-")


BUILDERS = """
    VLLM_CACHE_ROOT TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR FLASHINFER_WORKSPACE_BASE CUDA_CACHE_PATH
    B12X_COMPILE_CACHE_DIR B12X_CUTE_COMPILE_CACHE_DIR TILELANG_CACHE_DIR
"""
TUNED = "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_kernels_are_kept_and_what_ranks_tune_together_is_not(size: int) -> None:
    """One host's result of tuning without the other's makes a rank wait for ever."""
    of = wanted(size)
    hosts = {f"spark{number}": seen(number, links=one_cable(number)) for number in range(1, size + 1)}
    made_of = Ingredients(of, spec_for(of), hosts, pair(tuple(hosts.values())), INSIDE, {}, "t0ken")
    for rank in range(size):
        one = container(made_of, rank)
        assert all(one.env[name].startswith("/cache") for name in BUILDERS.split())
        assert any(bind.target == "/cache" and not bind.read_only for bind in one.binds)
        assert (TUNED in one.env) == (size > 1)
        assert not one.env.get(TUNED, "").startswith("/cache")
