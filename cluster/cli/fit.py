"""`cluster fit`: will a recipe fit, and how fast can it possibly be. Reads files only; no host is asked.

What cannot be computed is a constant here, taken from the write-ups; docs/fit.md says how far off that is. Sizes are in
GiB.
"""

from __future__ import annotations

import argparse
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from cluster.argv.vllm import AUTO, read_length
from cluster.bench.scaling import bytes_a_token
from cluster.config.find import recipe_files
from cluster.config.inventory import load_inventory
from cluster.config.recipe import AttentionLayers, Recipe, read_attention
from cluster.config.recipe import read_recipe as read_file
from cluster.deploy.session import read_recipe
from cluster.errors import ExitCode, UsageError
from cluster.screen import Screen
from cluster.spark.gpu import CARDS, SPARK, Card, card_of
from cluster.spark.memory import GIB

SYSTEM_GIB = 4.5  # What a Spark without a desktop session has in use without a deployment
HOST_SIDE_GIB = 2.6  # API server, engine and Ray outside of the GPU's share
GRAPHS_GIB = 5.8  # Compiled graphs and the activations of the largest batch, within vLLM's share
DEFAULT_UTILIZATION = 0.92  # vLLM 0.32's default (vllm/config/cache.py)
LAYERWISE_FROM = "0.19"
"""The vLLM that quantises a layer at a time (PR 31914 of January 2026, in its documentation since March); earlier ones
held the BF16 weights first."""
SLOW_T_S = 20.0  # Slower than people read; a dense model below it is worth comparing with a mixture of experts
UNSAID_LENGTH = 4096
HELD_WHOLE = f"vLLM before {LAYERWISE_FROM}, which the recipe allows, holds all of it before it quantises"
LAYERWISE = f"vLLM quantises a layer at a time (from {LAYERWISE_FROM} on, as the recipe asks for)"


def run(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Carry out `cluster fit`; 4 when it fits at none of the sizes."""
    recipe = read_recipe(args, load_inventory(args.inventory))
    attention = read_attention(Path(args.config)) if args.config else tuple(recipe.attention)
    length = wanted_length(recipe) if args.length is None else args.length
    sizes, card = args.tp or [1, 2], card_of(args.gpu or SPARK)
    if card is None:
        raise UsageError(f"--gpu {args.gpu}: expected one of {', '.join(CARDS)}", code="option-invalid")
    memory_gib = card.memory_gib if args.memory_gib is None else args.memory_gib
    if min([1 if length is None else length, args.sequences, *sizes]) < 1 or memory_gib <= 0:
        raise UsageError("expected --tp, --length, --sequences and --memory-gib above 0", code="option-invalid")
    fits = [fit(recipe, attention, tp, length, args.sequences, card, memory_gib) for tp in sizes]
    tokens = "the longest that fits" if length is None else f"{length} tokens"
    screen.line(
        f"{recipe.name}: {recipe.model}, {args.sequences} × {tokens}, {args.gpu or SPARK} hosts of {memory_gib:g} GiB"
    )
    columns = [column(recipe, one, card) for one in fits]
    rows = [(label, *(one[label] for one in columns)) for label in columns[0]]
    screen.table("", ("GiB on each host", *(f"TP={one.tp}" for one in fits)), rows)
    if not attention:
        screen.note("the cache is not counted: the recipe has no `attention`, and --config is not given")
    if any(one.loading > one.weights for one in fits):
        screen.note(f"while loading: {HELD_WHOLE if quantises_whole(recipe) else LAYERWISE}")
    if length is None:
        screen.note("max-model-len is auto: vLLM takes the longest that fits, or less where the model allows no more")
    if args.length is None and "max-model-len" not in recipe.vllm:
        screen.note(f"{length} tokens assumed, since the recipe has no max-model-len; set --length")
    for one in fits:
        for wrong in one.wrong:
            screen.warn(f"TP={one.tp}: does not fit: {wrong}")
    said = list(advice(recipe, sizes[0], card))
    for line in said:
        screen.line(line)
    ceiling = bytes_a_token(recipe).ceiling_t_s
    shown = [asdict(one) | {"ceiling_t_s": ceiling(card, one.tp)} for one in fits]
    screen.document({"recipe": recipe.name, "gpu": args.gpu or SPARK, "fits": shown, "advice": said})
    return ExitCode.REFUSED if all(one.wrong for one in fits) else ExitCode.DONE


def wanted_length(recipe: Recipe) -> int | None:
    """Tokens of a sequence by the recipe's max-model-len, None for auto. Raises UsageError."""
    try:
        length = read_length(recipe.vllm.get("max-model-len", UNSAID_LENGTH))
    except ValueError as error:
        raise UsageError(f"vllm.{error}", code="value-invalid") from None
    return None if length == AUTO else length


def column(recipe: Recipe, one: Fit, card: Card) -> dict[str, str]:
    """One size in the table, from what is loaded to how fast it can be."""
    rate = reference_rate(recipe, one.tp) if card is CARDS[SPARK] else None
    ceiling = bytes_a_token(recipe).ceiling_t_s(card, one.tp)
    share = f" ({rate / ceiling:.0%} of the ceiling)" if rate and ceiling else ""
    gib: dict[str, float | int | str | None] = {
        "weights while loading, at most": one.loading,
        "weights": one.weights,
        "graphs and activations": GRAPHS_GIB,
        "tokens of a sequence": one.length,
        "cache, sliding layers": one.cache_sliding,
        "cache, global layers": one.cache_global,
        "room for cache": one.cache_room,
        "  in tokens as vLLM counts them": one.tokens,
        "vLLM's share": one.share,
        "processes beside it, system": beside_gib(card),
        "left": one.left,
        "verdict": "does not fit" if one.wrong else "fits",
        "ceiling, tokens a second": ceiling,
        "published": f"{rate:g}{share}" if rate else "",
    }
    return {label: _shown(value) for label, value in gib.items()}


def _shown(value: float | int | str | None) -> str:
    if value is None or isinstance(value, str):
        return "?" if value is None else value
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"


def beside_gib(card: Card) -> float:
    """What the system and the programs beside the GPU's share take of its memory: nothing of a card's own."""
    return 0.0 if card.own_memory else SYSTEM_GIB + HOST_SIDE_GIB


def advice(recipe: Recipe, tp: int, card: Card) -> Iterator[str]:
    """What the ceiling means, and the mixture of experts of the same family when a dense model is slow by nature."""
    reading = bytes_a_token(recipe)
    ceiling = reading.ceiling_t_s(card, tp)
    if ceiling is None:
        yield f"no ceiling: {reading.why}"
        return
    yield f"ceiling: {reading.why}, once a token at {card.bytes_per_s / 1e9:g} GB/s a host; no client alone is faster"
    if recipe.active_parameters_b or ceiling >= SLOW_T_S or card is not CARDS[SPARK]:
        return
    best = max(siblings(recipe), key=lambda one: reference_rate(one, tp) or 0, default=None)
    if best and (reference_rate(best, tp) or 0) > ceiling:
        yield (
            f"run the mixture of experts instead: {best.name} reads {best.active_parameters_b:g} billion parameters a"
            f" token, published at {reference_rate(best, tp):g} tokens a second"
        )


def siblings(recipe: Recipe) -> Iterator[Recipe]:
    """Packaged and local recipes of the same architecture that read a part of their parameters."""
    for path in recipe_files().values():
        try:
            other = read_file(path)
        except UsageError:
            continue  # `recipes check` says what is wrong with it
        if other.architecture == recipe.architecture and other.active_parameters_b:
            yield other


def reference_rate(recipe: Recipe, tp: int) -> float | None:
    """The reference for one client's generation without context: the first published one, as everywhere."""
    rows = [row for reference in recipe.reference for row in reference.rows if row.tp == tp and row.t_s]
    return next((row.t_s for row in rows if row.test.startswith("tg") and " " not in row.test), None)


@dataclass(frozen=True, slots=True)
class Fit:
    """One host of `tp`. `loading` is the most that weights take while they are loaded; cache fields and
    a `length` that was not asked for are None where the recipe has no attention."""

    tp: int
    loading: float
    weights: float
    share: float
    total: float
    cache_sliding: float | None
    cache_global: float | None
    tokens: int | None
    length: int | None
    cache: float | None  # what the sequences take
    cache_room: float  # what vLLM's share leaves
    left: float  # free beside vLLM's share, its processes and the system
    wrong: tuple[str, ...]  # why it does not fit


def fit(
    recipe: Recipe,
    attention: Sequence[AttentionLayers],
    tp: int,
    length: int | None,
    sequences: int = 1,
    card: Card = CARDS[SPARK],
    memory_gib: float = CARDS[SPARK].memory_gib,
) -> Fit:
    """One host of `tp` for `sequences` of `length` tokens at once (None: the longest that fits).

    Raises UsageError when the recipe does not say how large its weights are, or vLLM's share.
    """
    if recipe.weights_gib is None:
        raise UsageError(
            f"recipe {recipe.name} has no weights_gib, so nothing can be counted",
            code="weights-gib-missing",
            remedy="--set weights_gib=N, the size of the model's files",
        )
    share, loaded = _utilization(recipe) * memory_gib, weights_gib(recipe)
    room = share - loaded / tp - GRAPHS_GIB
    layers = sum(shape.layers for shape in attention)
    loading = recipe.weights_gib
    if loaded < loading and not quantises_whole(recipe):  # one layer exists in both forms
        loading = loaded + (recipe.weights_gib / layers if layers else 0.0)
    # keys and values of one token in one layer of each shape, on one host; a head is never split
    width = 1 if str(recipe.vllm.get("kv-cache-dtype", "auto")).startswith("fp8") else 2
    each = [(shape, 2 * max(1, shape.kv_heads // tp) * shape.head_dim * width) for shape in attention]

    def held(tokens: int) -> tuple[float, float]:
        """GiB of all sequences in the layers that keep a window, and in those that keep all of it."""
        sliding = sum(shape.layers * size * min(shape.window, tokens) for shape, size in each if shape.window)
        complete = sum(shape.layers * size * tokens for shape, size in each if not shape.window)
        return sequences * sliding / GIB, sequences * complete / GIB

    if length is None and any(not shape.window for shape in attention):
        length = max(0, bisect_right(range(1 << 40), room, key=lambda tokens: sum(held(tokens))) - 1)
    sliding, complete = (None, None) if not each or length is None else held(length)
    # vLLM's line `GPU KV cache size`: as if every layer were as wide as the widest and kept all
    widest = max((size for _, size in each), default=0)
    cache, needed = (sliding or 0) + (complete or 0), loading / tp + beside_gib(card)
    left = memory_gib - beside_gib(card) - share
    wrong = {
        f"the weights take {loading / tp:.1f} GiB while they are loaded": needed > memory_gib,
        f"vLLM's share of {share:.1f} GiB leaves no room for a cache": room <= 0,
        f"the cache asked for is {cache:.1f} GiB, there is room for {room:.1f}": 0 < room < cache,
        f"{-left:.1f} GiB are missing beside vLLM's share: lower gpu-memory-utilization": left < 0,
    }
    return Fit(
        *(tp, loading / tp, loaded / tp, share, memory_gib, sliding, complete),
        tokens=max(0, int(room * GIB / (widest * layers))) if each else None,
        length=length,
        cache=None if sliding is None else cache,
        cache_room=room,
        left=left,
        wrong=tuple(why for why, holds in wrong.items() if holds),
    )


def _utilization(recipe: Recipe) -> float:
    found = recipe.vllm.get("gpu-memory-utilization", DEFAULT_UTILIZATION)
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
    """Whether a vLLM that the recipe allows holds all weights as they are on disk before it quantises them."""
    allowed, older = SpecifierSet(recipe.needs.vllm), range(int(LAYERWISE_FROM.partition(".")[2]))
    return _is_made(recipe) and any(allowed.contains(f"0.{minor}", prereleases=True) for minor in older)


def weights_gib(recipe: Recipe) -> float:
    """What the weights take once they are loaded, on all hosts together: their files, or what vLLM makes of them."""
    if _is_made(recipe) and recipe.parameters_b is not None:
        return recipe.parameters_b * 1e9 / GIB
    return recipe.weights_gib or 0.0


def _is_made(recipe: Recipe) -> bool:
    """Whether vLLM itself quantises BF16 weights while it loads them, to one byte a parameter."""
    return recipe.vllm.get("quantization") == "fp8"
