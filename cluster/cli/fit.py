"""`cluster fit`: will a recipe fit, and how fast can it possibly be. Reads files only; no host is asked."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from cluster.argv.vllm import AUTO, read_length
from cluster.bench.scaling import SPARK_BYTES_PER_S, bytes_a_token
from cluster.config.find import recipe_files
from cluster.config.inventory import load_inventory
from cluster.config.recipe import Recipe, read_attention
from cluster.config.recipe import read_recipe as read_file
from cluster.deploy.fit import GRAPHS_GIB, HOST_SIDE_GIB, LAYERWISE_FROM, SYSTEM_GIB, Asked, Fit, fit, quantises_whole
from cluster.deploy.session import read_recipe
from cluster.errors import ExitCode, UsageError
from cluster.screen import Screen

SLOW_T_S = 20.0
"""Slower than people read; a dense model below it is worth comparing with a mixture of experts."""
UNSAID_LENGTH = 4096
HELD_WHOLE = f"vLLM before {LAYERWISE_FROM}, which the recipe allows, holds all of it before it quantises"
LAYERWISE = f"vLLM quantises a layer at a time (from {LAYERWISE_FROM} on, as the recipe asks for)"


def run(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Carry out `cluster fit`; 4 when it fits at none of the sizes."""
    recipe = read_recipe(args, load_inventory(args.inventory))
    attention = read_attention(Path(args.config)) if args.config else tuple(recipe.attention)
    length = wanted_length(recipe) if args.length is None else args.length
    sizes = args.tp or [1, 2]
    if min([1 if length is None else length, args.sequences, *sizes]) < 1 or args.memory_gib <= 0:
        raise UsageError("expected --tp, --length, --sequences and --memory-gib above 0", code="option-invalid")
    asked = Asked(length, args.sequences, args.memory_gib)
    fits = [fit(recipe, attention, tp, asked) for tp in sizes]
    tokens = "the longest that fits" if length is None else f"{length} tokens"
    screen.line(f"{recipe.name}: {recipe.model}, {asked.sequences} × {tokens}, hosts of {asked.memory_gib:g} GiB")
    screen.table("", ("GiB on each host", *(f"TP={one.tp}" for one in fits)), list(rows(recipe, fits)))
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
    said = list(advice(recipe, sizes[0]))
    for line in said:
        screen.line(line)
    ceiling, derived = bytes_a_token(recipe).ceiling_t_s, ("cache", "cache_room", "left", "wrong")
    shown = [
        asdict(one) | {key: getattr(one, key) for key in derived} | {"ceiling_t_s": ceiling(one.tp)} for one in fits
    ]
    screen.document({"recipe": recipe.name, "fits": shown, "advice": said})
    return ExitCode.REFUSED if all(one.wrong for one in fits) else ExitCode.DONE


def wanted_length(recipe: Recipe) -> int | None:
    """Tokens of a sequence by the recipe's max-model-len, None for auto. Raises UsageError."""
    try:
        length = read_length(recipe.vllm.get("max-model-len", UNSAID_LENGTH))
    except ValueError as error:
        raise UsageError(f"vllm.{error}", code="value-invalid") from None
    return None if length == AUTO else length


def rows(recipe: Recipe, fits: list[Fit]) -> Iterator[tuple[str, ...]]:
    """The table, from what is loaded to how fast it can be."""
    reading = bytes_a_token(recipe)
    lines: dict[str, list[str]] = {
        "weights while loading, at most": [_number(one.loading) for one in fits],
        "weights": [_number(one.weights) for one in fits],
        "graphs and activations": [_number(GRAPHS_GIB) for _ in fits],
        "tokens of a sequence": ["?" if one.length is None else f"{one.length:,}" for one in fits],
        "cache, sliding layers": [_number(one.cache_sliding) for one in fits],
        "cache, global layers": [_number(one.cache_global) for one in fits],
        "room for cache": [_number(one.cache_room) for one in fits],
        "  in tokens as vLLM counts them": ["?" if one.tokens is None else f"{one.tokens:,}" for one in fits],
        "vLLM's share": [_number(one.share) for one in fits],
        "processes beside it, system": [_number(HOST_SIDE_GIB + SYSTEM_GIB) for _ in fits],
        "left": [_number(one.left) for one in fits],
        "verdict": ["does not fit" if one.wrong else "fits" for one in fits],
        "ceiling, tokens a second": [_number(reading.ceiling_t_s(one.tp)) for one in fits],
        "published": [_published(recipe, one.tp) for one in fits],
    }
    yield from ((name, *values) for name, values in lines.items())


def advice(recipe: Recipe, tp: int) -> Iterator[str]:
    """What the ceiling means, and the mixture of experts of the same family when a dense model is slow by nature."""
    reading = bytes_a_token(recipe)
    ceiling = reading.ceiling_t_s(tp)
    if ceiling is None:
        yield f"no ceiling: {reading.why}"
        return
    yield f"ceiling: {reading.why}, once a token at {SPARK_BYTES_PER_S / 1e9:g} GB/s a host; no client alone is faster"
    if recipe.active_parameters_b or ceiling >= SLOW_T_S:
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


def _published(recipe: Recipe, tp: int) -> str:
    """The reference rate, and how much of the ceiling it is."""
    rate, ceiling = reference_rate(recipe, tp), bytes_a_token(recipe).ceiling_t_s(tp)
    if rate is None:
        return ""
    return f"{rate:g}" + (f" ({rate / ceiling:.0%} of the ceiling)" if ceiling else "")


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"
