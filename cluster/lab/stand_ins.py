"""Which toy replaces a recipe's model in the lab, and what else of the recipe a CPU does not have, with why."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import UsageError
from cluster.lab.images import REAL

Replaced = tuple[str, str]  # KEY=VALUE of --set, why

EVERYWHERE: tuple[Replaced, ...] = (
    ("weights=dummy", "they are random, so the text of answers is not judged"),
    (f"image={REAL}", "the recipe's is for CUDA, and the lab's hosts see no network but their own"),
    ("platform=any", "the lab runs on this machine's CPU"),
    ("transport=socket", "RDMA is not spoken; counts when there is more than one host"),
    ("memory.per_host_gib=", "a toy needs a few GiB"),
)
NEWER = ("needs.vllm=", "the lab's is 0.32")
NO_NVFP4 = ("vllm.quantization=", "vLLM has no NVFP4 for CPU")
NO_EXPERTS = "vLLM has no FP8 experts for CPU; the toy's are BF16, its other layers FP8"
PINNED = ("revision=main", "the commit is the real model's")
ON_GPU = "is for GPUs"
NO_FLASHINFER = ("vllm.attention-backend=", f"FlashInfer {ON_GPU}")
NO_DRAFTS = ("vllm.speculative-config=", "the toy has no drafter")
NO_LOADER = ("vllm.load-format=", f"this loader {ON_GPU}")
DENSE, MIXTURE = "tiny-gemma-4-dense", "tiny-gemma-4-moe"
WITHOUT_AVX512 = ("vllm.kv-cache-dtype=", "this CPU has no AVX-512, which vLLM's FP8 cache on x86 requires")


def cpu_flags() -> frozenset[str]:
    """What this machine's CPU can do: `flags` of /proc/cpuinfo; empty on other architectures."""
    rows = (row.partition(":") for row in Path("/proc/cpuinfo").read_text().splitlines())
    return frozenset(next((words for name, _colon, words in rows if name.strip() == "flags"), "").split())


@dataclass(frozen=True, slots=True)
class StandIn:
    """A toy, what is replaced besides the model and `EVERYWHERE`, and what the toy is not."""

    toy: str
    replaced: tuple[Replaced, ...] = ()
    note: str = ""
    fp8_cache: bool = False

    def all_replaced(self, flags: Collection[str]) -> tuple[Replaced, ...]:
        """With what a CPU of these flags lacks; one without flags is no x86 and has an FP8 cache."""
        lacks = self.fp8_cache and flags and not {"avx512f", "amx_tile"} & set(flags)
        return (*EVERYWHERE, *((WITHOUT_AVX512,) if lacks else ()), *self.replaced)


STAND_INS = {
    "gemma-4-31b-fp8": StandIn(
        DENSE, note="the lab's plugin makes the weights FP8; vLLM's CPU build lacks that kernel", fp8_cache=True
    ),
    "gemma-4-31b-bf16": StandIn(DENSE),
    "gemma-4-31b-awq": StandIn(f"{DENSE}-awq", fp8_cache=True),
    "gemma-4-31b-nvfp4": StandIn(DENSE, (NEWER, NO_NVFP4)),
    "gemma-4-31b-nvfp4-marlin": StandIn(
        DENSE, (NEWER, NO_NVFP4, ("expect_log=", "no layer is in NVFP4, so the log names no kernel"))
    ),
    "gemma-4-26b-a4b-bf16": StandIn(MIXTURE),
    "gemma-4-26b-a4b-fp8": StandIn(f"{MIXTURE}-fp8", note=NO_EXPERTS),
    "gemma-4-26b-a4b-fp8-mtp": StandIn(
        f"{MIXTURE}-fp8",
        (
            (f"vllm.speculative-config.model=cluster-lab/{MIXTURE}-assistant", "the toy's own drafter"),
            ("dockerfile=", "the overlay fetches vLLM's files, and 0.32 needs none"),
        ),
        f"{NO_EXPERTS}; the drafter is random too, so no draft is accepted",
    ),
    "gemma-4-26b-a4b-nvfp4": StandIn(
        MIXTURE,
        (
            NEWER,
            NO_NVFP4,
            ("vllm.moe-backend=", "Marlin is for GPUs"),
            ("expect_log=", "so the log does not name it"),
        ),
        "its gemma4_patched.py is a copy of vLLM's own file, mounted as the recipe says",
        fp8_cache=True,
    ),
    "qwen3.5-35b-a3b-fp8": StandIn("tiny-qwen-3.5-moe", note="BF16, without pictures"),
    "qwen3.6-35b-a3b-nvfp4": StandIn(
        "tiny-qwen-3.5-moe",
        (
            PINNED,
            NO_FLASHINFER,
            NO_DRAFTS,
            ("vllm.moe-backend=", f"Marlin {ON_GPU}"),
            ("expect_log=", "so the log does not name it"),
        ),
        "BF16, without pictures",
        fp8_cache=True,
    ),
    "qwen3.8-27b-nvfp4-dflash2": StandIn(
        "tiny-qwen-3.5-dense",
        (PINNED, NO_DRAFTS, ("env.VLLM_USE_V2_MODEL_RUNNER=", "that model runner requires Triton")),
        "BF16, without pictures",
        fp8_cache=True,
    ),
    "minimax-m2.7-nvfp4": StandIn(
        "tiny-minimax-m2",
        (PINNED, NO_LOADER),
        "BF16, and its experts' scores are softmaxes: vLLM's CPU build has no sigmoids",
        fp8_cache=True,
    ),
    "nemotron-3-super-120b-nvfp4": StandIn(
        "tiny-nemotron-h",
        (PINNED, NO_FLASHINFER, NO_DRAFTS, NO_LOADER, ("expect_log=", "the toy has no experts, so no kernel is named")),
        "BF16, without experts: vLLM's CPU build has none without a gate",
        fp8_cache=True,
    ),
}
NO_TOY = {
    "deepseek-v4-flash-0731": "its flags name kernels for GPUs; of vLLM's own CPU code for it nothing was tried",
    "glm-5.3-flash-nvfp4": "vLLM 0.32 has its layers for GPUs only",
    **dict.fromkeys(
        ("qwen3.8-flash-next-nvfp4", "qwen3.8-flash-next-disk"),
        "vLLM 0.32 has its layers for NVIDIA's and AMD's GPUs only",
    ),
}
"""Recipes that nothing stands in for, with why."""


def words_for(recipe: str) -> str:
    """What follows `cluster up` or `swap`: the recipe and its `--set`s. Raises UsageError: no such recipe, no toy."""
    if recipe in NO_TOY:
        what = f"no toy stands in for {recipe}: {NO_TOY[recipe]}"
        raise UsageError(what, code="toy-missing", remedy="cluster up RECIPE --dry-run shows its plan on real hosts")
    if recipe not in STAND_INS:
        near = difflib.get_close_matches(recipe, STAND_INS, 1, 0.0)[0]
        what = f"no toy stands in for {recipe!r}; did you mean {near}?"
        raise UsageError(what, code="recipe-unknown", remedy="cluster lab toy")
    made = STAND_INS[recipe]
    sets = [f"model=cluster-lab/{made.toy}", *(text for text, _why in made.all_replaced(cpu_flags()))]
    return shlex.join([recipe, *(word for text in sets for word in ("--set", text))])


def table() -> list[str]:
    """A line for each recipe; below it what is replaced for it alone. Last, what is replaced for all."""
    width = max(map(len, STAND_INS))
    rows: list[str] = []
    for recipe, made in STAND_INS.items():
        rows.append(f"{recipe:<{width}}  {made.toy}" + (f"  ({made.note})" if made.note else ""))
        own = made.all_replaced(cpu_flags())[len(EVERYWHERE) :]
        rows += [f"  --set {text}  {why}" for text, why in own]
    rows += [f"{recipe:<{width}}  none ({why})" for recipe, why in NO_TOY.items()]
    return [*rows, "all of them", *(f"  --set {text}  {why}" for text, why in EVERYWHERE)]
