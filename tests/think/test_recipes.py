"""The packaged recipes: checked, planned, and what their write-ups published."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from golden_plans import compare, plan
from plan_tools import seen, wanted

from cluster.argv.vllm import MEASURING_FLAGS, Layout, vllm_serve
from cluster.cli.fit import reference_rate
from cluster.cli.recipes import problems_of
from cluster.config.find import shipped
from cluster.config.recipe import final_recipe, load_recipe, read_dockerfile, read_mounts

NAMES = sorted(path.stem for path in shipped("recipes").glob("*.yaml"))
PAIRS = ("deepseek-v4-flash-0731", "glm-5.3-flash-nvfp4", "minimax-m2.7-nvfp4", "qwen3.8-flash-next-nvfp4")
"""What one host has no room for."""
SIZES = [(name, 2 if name in PAIRS else 1) for name in NAMES]
SIZES += [("gemma-4-31b-fp8", 2), ("gemma-4-26b-a4b-bf16", 2), ("qwen3.8-27b-nvfp4-dflash2", 2)]
"""Every recipe on as many hosts as it needs, and some on two."""


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_used(name: str) -> None:
    assert list(problems_of(shipped("recipes") / f"{name}.yaml")) == []
    recipe = load_recipe(name).recipe
    assert max(recipe.bench.concurrency) <= int(str(recipe.vllm.get("max-num-seqs", 256)))
    assert (1 not in recipe.memory.per_host_gib) is (name in PAIRS)


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_the_plan(name: str, size: int) -> None:
    recipe = load_recipe(name).recipe
    of = wanted(
        size,
        recipe.backend if size > 1 else "none",
        recipe,
        mounted=read_mounts(recipe.mounts),
        dockerfile=read_dockerfile(recipe.dockerfile),
    )
    hosts = [seen(number) for number in range(1, size + 1)]
    compare(f"recipes/{name}-tp{size}", plan(of, hosts).lines(), recipe=name)


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


ADDED = {"revision", "host", "tensor-parallel-size", "pipeline-parallel-size", "distributed-executor-backend"}
"""Flags that `up` says itself, whatever a recipe holds."""
MEASURING = {flag.removeprefix("--") for flag in MEASURING_FLAGS}
"""Flags that `up` adds so that a measurement can read what the server did."""


@dataclass(frozen=True, slots=True)
class WriteUp:
    """A command; `derived`: from what, where no author typed it.

    `changed` has our value of each flag that differs (None: left out), with the reason.
    """

    recipe: str
    typed: str
    changed: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    sets: tuple[str, ...] = ()
    derived: str = ""


WRITE_UPS = {
    "31B FP8": WriteUp(
        "gemma-4-31b-fp8",
        """vllm serve google/gemma-4-31B-it --port 8000 --quantization fp8 --kv-cache-dtype fp8 --max-model-len 65536
        --gpu-memory-utilization 0.85""",
        {
            "served-model-name": ("google/gemma-4-31B-it", "always said; the same as vLLM's default"),
            "enable-auto-tool-choice": ("", "the write-up tests tools, which need it, and shows settings only"),
            "tool-call-parser": ("gemma4", "as above"),
            "reasoning-parser": ("gemma4", "as above"),
        },
        derived="the write-up's list of settings; it shows no `vllm serve`",
    ),
    "31B NVFP4": WriteUp(
        "gemma-4-31b-nvfp4",
        """vllm serve nvidia/Gemma-4-31B-IT-NVFP4 --served-model-name gemma4-31b --quantization modelopt
        --language-model-only --max-model-len 65536 --max-num-seqs 4 --gpu-memory-utilization 0.50
        --enable-prefix-caching --enable-chunked-prefill --trust-remote-code --enable-auto-tool-choice
        --tool-call-parser gemma4 --reasoning-parser gemma4""",
        {
            "trust-remote-code": (None, "nothing of the checkpoint needs to run"),
            "port": ("8000", "always said; vLLM's default"),
        },
    ),
    "26B-A4B NVFP4, May": WriteUp(
        "gemma-4-26b-a4b-nvfp4",
        """--model bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4 --served-model-name google/gemma-4-26B-A4B-it
        --host 0.0.0.0 --port 8888 --quantization modelopt --moe-backend marlin --kv-cache-dtype fp8
        --enable-prefix-caching --enable-chunked-prefill --max-model-len 131072 --gpu-memory-utilization 0.85
        --max-num-seqs 16 --enable-auto-tool-choice --tool-call-parser gemma4 --reasoning-parser gemma4""",
        {"port": ("8000", "behind docker's -p 8000:8888 it was 8000 too")},
    ),
    "26B-A4B NVFP4, April": WriteUp(
        "gemma-4-26b-a4b-nvfp4",
        """--model /models/gemma4 --served-model-name gemma-4-26b --host 0.0.0.0 --port 8000 --quantization modelopt
        --kv-cache-dtype fp8 --max-model-len 131072 --gpu-memory-utilization 0.85 --moe-backend marlin
        --reasoning-parser gemma4 --enable-auto-tool-choice --tool-call-parser pythonic""",
        {
            "model": ("bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4", "was a folder that the author had downloaded"),
            "tool-call-parser": ("gemma4", "pythonic reads another family's calls"),
        },
        (
            "served_model_name=gemma-4-26b",
            "vllm.max-num-seqs=",
            "vllm.enable-prefix-caching=",
            "vllm.enable-chunked-prefill=",
        ),
    ),
    "26B-A4B FP8": WriteUp(
        "gemma-4-26b-a4b-fp8",
        """vllm serve RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic --served-model-name gemma4-fp8 --max-model-len 65536
        --gpu-memory-utilization 0.45 --max-num-seqs 4 --max-num-batched-tokens 8192 --enable-auto-tool-choice
        --tool-call-parser gemma4 --reasoning-parser gemma4 --port 11437""",
        {"port": ("8000", "one port for all recipes, so that clients stay when models are swapped")},
        derived="the command with the drafter, without it; of the run without none is shown",
    ),
    "26B-A4B FP8 + MTP": WriteUp(
        "gemma-4-26b-a4b-fp8-mtp",
        """vllm serve RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic --served-model-name gemma4-fp8-mtp --max-model-len 65536
        --gpu-memory-utilization 0.45 --max-num-seqs 4 --max-num-batched-tokens 8192 --enable-auto-tool-choice
        --tool-call-parser gemma4 --reasoning-parser gemma4 --port 11437 --speculative-config
        '{"method":"gemma4_mtp","model":"google/gemma-4-26B-A4B-it-assistant","num_speculative_tokens":4}'""",
        {"port": ("8000", "as without drafter")},
    ),
}


def read_flags(words: Sequence[str]) -> dict[str, str]:
    """Flags with their values; the model under `model`, whether it stood alone or behind --model."""
    rest = list(words[2:] if list(words[:2]) == ["vllm", "serve"] else words)
    flags = {} if rest[0].startswith("--") else {"model": rest.pop(0)}
    while rest:
        name, sign, value = rest.pop(0).removeprefix("--").partition("=")
        flags[name] = value if sign or not rest or rest[0].startswith("--") else rest.pop(0)
    return flags


def equal(typed: str, ours: str) -> bool:
    """The same value, however a number was written."""
    try:
        return typed == ours or float(typed) == float(ours)
    except ValueError:
        return False


@pytest.mark.parametrize("name", WRITE_UPS)
def test_flags_are_those_of_the_write_up(name: str) -> None:
    write_up = WRITE_UPS[name]
    recipe = final_recipe(load_recipe(write_up.recipe).recipe, write_up.sets)
    words = vllm_serve(recipe, Layout(1, 1, "none", ("127.0.0.1",)), measuring=MEASURING_FLAGS)
    ours, typed = read_flags(words), read_flags(shlex.split(write_up.typed))
    differing = {
        flag: ours.get(flag)
        for flag in ours.keys() | typed.keys()
        if flag not in ours or flag not in typed or not equal(typed[flag], ours[flag])
    }
    added = {flag for flag in differing if flag in ADDED | MEASURING and flag not in typed}
    said = {flag: value for flag, (value, _) in write_up.changed.items()}
    assert {flag: value for flag, value in differing.items() if flag not in added} == said
