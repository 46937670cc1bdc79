"""Will it fit: one host's memory, counted from a recipe before any host is asked. Pure; all sizes in GiB.

What cannot be computed is a constant here, taken from the write-ups; docs/fit.md says how far off that is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cluster.config.recipe import AttentionLayers, Recipe
from cluster.errors import UsageError
from cluster.spark.memory import GIB

SPARK_GIB = 121.6
"""MemTotal of a DGX Spark."""
SYSTEM_GIB = 4.5
"""What a Spark without a desktop session has in use when nothing of ours runs."""
HOST_SIDE_GIB = 2.6
"""API server, engine and Ray outside of the GPU's share."""
GRAPHS_GIB = 5.8
"""Compiled graphs and the activations of the largest batch, within vLLM's share."""
DEFAULT_UTILISATION = 0.92
"""What vLLM 0.32 takes when it is not told (vllm/config/cache.py)."""
RUN_TIME_BYTES = {"fp8": 1.0}
"""Bytes a parameter of quantisations that vLLM makes itself while it loads BF16 weights."""
LAYERWISE_FROM = "0.19"
"""The vLLM that makes them a layer at a time (PR 31914 of January 2026, in its documentation since March); those before
held the BF16 weights first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`sequences` of `length` tokens at once (None: the longest that fits), on hosts with `memory_gib`."""

    length: int | None
    sequences: int = 1
    memory_gib: float = SPARK_GIB


@dataclass(frozen=True, slots=True)
class Fit:
    """One host of `tp`. `loading` is the most that weights take while they are loaded; cache fields and
    a `length` that was not asked for are None where the recipe does not tell the attention."""

    tp: int
    loading: float
    weights: float
    share: float
    total: float
    cache_sliding: float | None
    cache_global: float | None
    tokens: int | None
    length: int | None

    @property
    def cache_room(self) -> float:
        """What vLLM's share leaves for the cache."""
        return self.share - self.weights - GRAPHS_GIB

    @property
    def cache(self) -> float | None:
        """What the asked sequences take of it."""
        if self.cache_sliding is None or self.cache_global is None:
            return None
        return self.cache_sliding + self.cache_global

    @property
    def left(self) -> float:
        """What stays free of the host beside vLLM's share, its processes and the system."""
        return self.total - SYSTEM_GIB - HOST_SIDE_GIB - self.share

    @property
    def wrong(self) -> tuple[str, ...]:
        """Why it does not fit; empty when it does."""
        rows = []
        if self.loading + SYSTEM_GIB + HOST_SIDE_GIB > self.total:
            rows.append(f"the weights take {self.loading:.1f} GiB while they are loaded")
        if self.cache_room <= 0:
            rows.append(f"vLLM's share of {self.share:.1f} GiB leaves no room for a cache")
        elif self.cache is not None and self.cache > self.cache_room:
            rows.append(f"the cache asked for is {self.cache:.1f} GiB, there is room for {self.cache_room:.1f}")
        if self.left < 0:
            rows.append(f"{-self.left:.1f} GiB are missing beside vLLM's share: lower gpu-memory-utilization")
        return tuple(rows)


def fit(recipe: Recipe, attention: Sequence[AttentionLayers], tp: int, asked: Asked) -> Fit:
    """One host of `tp`. Raises UsageError when the recipe does not say how large its weights are, or vLLM's share."""
    if recipe.weights_gib is None:
        raise UsageError(
            f"recipe {recipe.name} has no weights_gib, so nothing can be counted",
            code="weights-gib-missing",
            remedy="--set weights_gib=N, the size of the model's files",
        )
    share, loaded = _utilisation(recipe) * asked.memory_gib, weights_gib(recipe)
    room = share - loaded / tp - GRAPHS_GIB
    layers = sum(shape.layers for shape in attention)
    loading = recipe.weights_gib
    if loaded < loading and not quantises_whole(recipe):  # one layer is there in both forms
        loading = loaded + (recipe.weights_gib / layers if layers else 0.0)
    # keys and values of one token in all layers of a shape, on one host; a head is never split
    width = 1 if str(recipe.vllm.get("kv-cache-dtype", "auto")).startswith("fp8") else 2
    each = [float(shape.layers * 2 * max(1, shape.kv_heads // tp) * shape.head_dim * width) for shape in attention]
    length = asked.length
    if length is None and any(not shape.window for shape in attention):
        held = bisect_right(
            range(1 << 40), room * GIB / asked.sequences, key=lambda tokens: sum(_held(attention, each, tokens))
        )
        length = max(0, held - 1)
    sliding, whole = _held(attention, each, length or 0)
    known = bool(each) and length is not None
    tokens = None
    if each:  # vLLM's line `GPU KV cache size`: as if every layer were as wide as the widest and kept all
        widest = max(size / shape.layers for shape, size in zip(attention, each, strict=True))
        tokens = max(0, int(room * GIB / (widest * layers)))
    return Fit(
        tp,
        loading / tp,
        loaded / tp,
        share,
        asked.memory_gib,
        cache_sliding=asked.sequences * sliding / GIB if known else None,
        cache_global=asked.sequences * whole / GIB if known else None,
        tokens=tokens,
        length=length,
    )


def _held(attention: Sequence[AttentionLayers], each: Sequence[float], length: int) -> tuple[float, float]:
    """Bytes of one sequence in the layers that keep a window, and in those that keep all of it."""
    sized = list(zip(attention, each, strict=True))
    sliding = sum(size * min(shape.window, length) for shape, size in sized if shape.window)
    return sliding, sum(size * length for shape, size in sized if not shape.window)


def _utilisation(recipe: Recipe) -> float:
    found = recipe.vllm.get("gpu-memory-utilization", DEFAULT_UTILISATION)
    try:
        share = float(str(found))
    except ValueError:
        share = 0
    if not 0 < share <= 1:
        raise UsageError(
            f"vllm.gpu-memory-utilization: expected a number above 0 and at most 1, got {found!r}", code="not-in-range"
        )
    return share


def quantises_whole(recipe: Recipe) -> bool:
    """Whether a vLLM that the recipe allows holds all weights as they lie on disk before it quantises them."""
    made = RUN_TIME_BYTES.get(str(recipe.vllm.get("quantization")))
    allowed = SpecifierSet(recipe.needs.vllm)
    older = (f"0.{minor}" for minor in range(Version(LAYERWISE_FROM).minor))
    return made is not None and any(allowed.contains(version, prereleases=True) for version in older)


def weights_gib(recipe: Recipe) -> float:
    """What the weights take once they are loaded, on all hosts together: their files, or what vLLM makes of them."""
    made = RUN_TIME_BYTES.get(str(recipe.vllm.get("quantization")))
    if made is None or recipe.parameters_b is None:
        return recipe.weights_gib or 0.0
    return recipe.parameters_b * 1e9 * made / GIB
