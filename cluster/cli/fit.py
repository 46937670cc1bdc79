"""`cluster fit`: will a recipe fit, and how fast can it possibly be. Reads a checkpoint's headers; no host is asked."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from cluster.argv.vllm import drafter_of, read_count
from cluster.config.find import recipe_files
from cluster.config.inventory import load_inventory
from cluster.config.recipe import Recipe
from cluster.config.recipe import read_recipe as read_file
from cluster.deploy.fetch import read_token
from cluster.deploy.session import read_recipe
from cluster.errors import ExitCode, UsageError
from cluster.model.checkpoint import Checkpoint, cache_dir, local_copy, read_hub, read_local
from cluster.model.fit import (
    GRAPHS_GIB,
    LAYERWISE_FROM,
    MOST,
    UNKNOWN_LIMIT,
    Asked,
    Fit,
    KnownModel,
    beside_gib,
    context_of,
    drafting,
    fit,
    lever_of,
    quantises_whole,
    release_of,
    wanted_length,
)
from cluster.screen import Screen
from cluster.spark.gpu import CARDS, SPARK, Card, card_of
from cluster.spark.memory import GIB

MOST_GIB = 1 << 20  # no host has more
SLOW_T_S = 20.0  # Slower than people read; a dense model below it is worth comparing with a mixture of experts
HELD_WHOLE = "holds all of it before it quantises"
LAYERWISE = "quantises a layer at a time"
UNCOUNTED = ("cpu-offload-gb", "num-gpu-blocks-override")
ONLINE = ("bitsandbytes", "experts_int8", "mxfp8", "online", "torchao")
"""Values of quantization, and beginnings of others (fp8_per_tensor, …), by which vLLM quantises while it loads."""


def run(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Carry out `cluster fit`; 4 when it fits at none of the sizes."""
    recipe = read_recipe(args, load_inventory(args.inventory))
    model = read_model(recipe, args)
    asked = read_asked(recipe, model, args)
    name = args.gpu or SPARK
    fits = [fit(recipe, model, replace(asked, tp=tp)) for tp in args.tp or [1, 2]]
    tokens = "the longest that fits" if asked.length is None else f"{asked.length} tokens"
    screen.line(f"{recipe.name}: {recipe.model}, {asked.sequences} × {tokens}, {name} hosts of {asked.memory:g} GiB")
    columns = [column(recipe, one, asked.card) for one in fits]
    labels = dict.fromkeys(label for one in columns for label in one)
    rows = [(label, *(one.get(label, "") for one in columns)) for label in labels]
    screen.table("", ("GiB on each host", *(f"TP={one.tp}" for one in fits)), rows)
    for note in notes(recipe, model, args, asked, fits):
        screen.note(note)
    for one in fits:
        for wrong in one.wrong:
            screen.warn(f"TP={one.tp}: does not fit: {wrong}")
    said = list(advice(recipe, fits[0], asked.card))
    for line in said:
        screen.line(line)
    source = model.checkpoint and {"model": model.checkpoint.id, "commit": model.checkpoint.commit}
    shown = [asdict(one) for one in fits]
    screen.document({"recipe": recipe.name, "gpu": name, "checkpoint": source, "fits": shown, "advice": said})
    return ExitCode.REFUSED if all(one.wrong for one in fits) else ExitCode.DONE


def read_asked(recipe: Recipe, model: KnownModel, args: argparse.Namespace) -> Asked:
    """The options. Raises UsageError for sizes that are none and a GPU that is not known."""
    card = card_of(args.gpu or SPARK)
    if card is None:
        raise UsageError(f"--gpu {args.gpu}: expected one of {', '.join(CARDS)}", code="option-invalid")
    try:
        length = wanted_length(recipe, model) if args.length is None else read_count("--length", args.length, "tokens")
    except ValueError as error:
        raise UsageError(str(error), code="option-invalid") from None
    memory = card.memory_gib if args.memory_gib is None else args.memory_gib
    ranks, sizes = [args.pp, *(args.tp or [])], [1 if length is None else length, args.sequences]
    if min(ranks + sizes) < 1 or max(ranks) > MOST or max(sizes) > UNKNOWN_LIMIT:
        what = f"expected --tp and --pp from 1 to {MOST}, --length and --sequences from 1 to {UNKNOWN_LIMIT}"
        raise UsageError(what, code="option-invalid")
    if not 0 < memory <= MOST_GIB or not 0 <= (args.leave or 0) <= MOST_GIB:
        what = f"expected --memory-gib above 0, --leave 0 or more, both at most {MOST_GIB}"
        raise UsageError(what, code="option-invalid")
    if args.acceptance is not None and not 0 <= args.acceptance <= 1:
        raise UsageError(f"--acceptance {args.acceptance:g}: expected a share from 0 to 1", code="option-invalid")
    release = release_of(f":v{args.vllm}" if args.vllm else recipe.image)
    if args.vllm and release is None:
        raise UsageError(f"--vllm {args.vllm}: expected a release, as 0.32", code="option-invalid")
    return Asked(1, args.pp, length, args.sequences, card, memory, args.leave, args.acceptance, release)


def read_model(recipe: Recipe, args: argparse.Namespace) -> KnownModel:
    """The checkpoint's headers and the drafter's: of a directory, this machine's copy, or the hub.

    Raises UsageError and UnreachableError as `read_local` and `read_hub`.
    """
    if args.model_dir and args.offline:
        what = "--offline reads no headers, --model-dir says where they are: expected one of the two"
        raise UsageError(what, code="option-invalid")
    if args.model_dir:
        return KnownModel(read_local(Path(args.model_dir)))
    if args.offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return KnownModel()
    drafter = drafter_of(drafting(recipe))
    return KnownModel(headers(recipe.model, recipe.revision), headers(*drafter) if drafter else None)


def headers(model: str, revision: str) -> Checkpoint:
    """A model's headers: of a directory or copy on this machine, else from the hub."""
    if copy := local_copy(model, revision):
        return read_local(copy)
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    return read_hub(model, revision, read_token(None), cache_dir(), endpoint)


def notes(recipe: Recipe, model: KnownModel, args: argparse.Namespace, asked: Asked, fits: list[Fit]) -> Iterator[str]:
    """What was assumed."""
    if model.checkpoint is None:
        yield "counted with the recipe's own numbers; without --offline the checkpoint's headers are read"
    if model.drafter is None and (drafter := drafter_of(drafting(recipe))):
        yield f"the drafter {drafter[0]} is not counted: its headers were not read"
    for why in {one.cache_why for one in fits if one.cache_why}:
        yield f"the cache is not counted: {why}"
    unknown = max(one.unknown for one in fits)
    if unknown > 0.005:
        yield f"{unknown:.2f} GiB of the weights have names that no rule knows; counted as split where they can be"
    if any(one.loading > one.weights + 0.005 for one in fits) and recipe.vllm.get("quantization") == "fp8":
        whole = quantises_whole(recipe, asked.release)
        allowed = f"before {LAYERWISE_FROM}, which the recipe allows," if whole else f"from {LAYERWISE_FROM} on"
        which = "{}.{}".format(*asked.release) if asked.release else allowed
        yield f"while loading: vLLM {which} {HELD_WHOLE if whole else LAYERWISE}"
    for flag in UNCOUNTED:
        if recipe.vllm.get(flag) is not None:
            yield f"{flag} is not counted"
    made = str(recipe.vllm.get("quantization"))
    if made in ONLINE or re.match(r"(fp8|int8|nvfp4)_per_", made):
        yield f"vLLM quantises to {made} while it loads, which is not counted: the weights are as in the files"
    longest = max((one.longest or 0 for one in fits), default=0)
    if longest > (fits[0].length or 0) and not (model.checkpoint and context_of(model.checkpoint.config)):
        yield "longest context: what the cache holds, not beyond what the model allows, which is not known here"
    for said in recipe.unverified:
        yield f"unverified: {said}"
    if args.length is None and wanted_length(recipe, model) is None:
        yield "max-model-len is auto: vLLM takes the longest that fits, or less where the model allows no more"
    if args.length is None and "max-model-len" not in recipe.vllm and model.checkpoint is None:
        yield f"{wanted_length(recipe, model)} tokens assumed, since the recipe has no max-model-len; set --length"
    if args.leave is not None:
        lever, shares = lever_of(recipe), []
        for one in fits:
            share = f"{one.utilization:.3f}" if lever == "gpu-memory-utilization" else f"{one.room * GIB:.0f}"
            shares.append(f"TP={one.tp}: {share if one.room > 0 else 'none'}")
        yield f"{lever} that leaves {args.leave:g} GiB free: {', '.join(shares)}"


def column(recipe: Recipe, one: Fit, card: Card) -> dict[str, str]:
    """One size in the table, from what is loaded to how fast it can be."""
    rate = reference_rate(recipe, one.tp) if card is CARDS[SPARK] else None
    share = f" ({rate / one.ceiling_t_s:.0%} of the ceiling)" if rate and one.ceiling_t_s else ""
    order = ("layers", "experts", "embeddings", "head", "tower", "drafter", "position tables")
    gib: dict[str, float | int | str | None] = {
        "weights while loading, at most": one.loading,
        "weights": one.weights,
        **{f"  {name}": one.parts[name] for name in order if name in one.parts},
        "graphs and activations": GRAPHS_GIB,
        "room for cache": one.room,
        "  in tokens as vLLM counts them": one.tokens,
        "tokens of a sequence": one.length,
        f"cache for {one.sequences}": one.needed,
        f"longest context of {one.sequences}": one.longest,
        "most sequences": one.most,
        "vLLM's share": one.share,
        "processes beside it, system": beside_gib(card),
        "left": one.left,
        "verdict": one.verdict,
        "ceiling, tokens a second": one.ceiling_t_s,
        "published": f"{rate:g}{share}" if rate else "",
    }
    return {label: _shown(value) for label, value in gib.items()}


def _shown(value: float | int | str | None) -> str:
    if value is None or isinstance(value, str):
        return "unknown" if value is None else value
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"


def advice(recipe: Recipe, one: Fit, card: Card) -> Iterator[str]:
    """What the ceiling means, and the mixture of experts of the same family when a dense model is slow by nature."""
    if one.ceiling_t_s is None:
        yield f"no ceiling: {one.ceiling_why}"
        return
    yield f"ceiling: {one.ceiling_why}, at {card.bytes_per_s / 1e9:g} GB/s a host; no client alone is faster"
    if recipe.active_parameters_b or one.ceiling_t_s >= SLOW_T_S or card is not CARDS[SPARK]:
        return
    best = max(siblings(recipe), key=lambda other: reference_rate(other, one.tp) or 0, default=None)
    if best and (reference_rate(best, one.tp) or 0) > one.ceiling_t_s:
        yield (
            f"run the mixture of experts instead: {best.name} reads {best.active_parameters_b:g} billion parameters a"
            f" token, published at {reference_rate(best, one.tp):g} tokens a second"
        )


def siblings(recipe: Recipe) -> Iterator[Recipe]:
    """Packaged and local recipes of the same architecture that read a part of their parameters."""
    for path in recipe_files().values():
        try:
            other = read_file(path)
        except UsageError:
            continue  # `recipes check` says what is wrong with it
        if other.architecture and other.architecture == recipe.architecture and other.active_parameters_b:
            yield other


def reference_rate(recipe: Recipe, tp: int) -> float | None:
    """The reference for one client's generation without context: the first published one, as everywhere."""
    rows = [row for reference in recipe.reference for row in reference.rows if row.tp == tp and row.t_s]
    return next((row.t_s for row in rows if row.test.startswith("tg") and " " not in row.test), None)
