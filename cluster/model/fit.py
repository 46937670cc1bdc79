"""One host's memory for a deployment: weights, vLLM's cache, what is left, and how fast it can be at most. Pure.

Sizes are in GiB unless a name says bytes. What cannot be computed is a constant here, taken from write-ups and runs;
docs/fit.md says how far off each is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from cluster.argv.vllm import AUTO, drafter_of, drafting_of, read_count, read_length, read_share, serve_flags
from cluster.bench.scaling import bytes_a_token
from cluster.config.recipe import AttentionLayers, Recipe
from cluster.errors import UsageError
from cluster.model.cache import Cache, cache_of
from cluster.model.checkpoint import Checkpoint, known_checkpoint
from cluster.model.layers import (
    CacheFlags,
    KeptLayers,
    cache_dtype_of,
    check,
    family_of,
    heads_of,
    kept_layers,
    reading,
    text_of,
    value_width,
)
from cluster.model.weights import RankWeights, Sharding, on_ranks
from cluster.spark.gpu import CARDS, SPARK, Card
from cluster.spark.memory import GIB
from cluster.spark.request import Wanted

SYSTEM_GIB = 4.5  # What a Spark without a desktop session has in use without a deployment
HOST_SIDE_GIB = 2.6  # API server, engine and Ray outside of the GPU's share
GRAPHS_GIB = 5.8  # Compiled graphs and the activations of the largest batch, within vLLM's share
MOST = 1024
"""Ranks and drafted tokens beyond which nothing is counted: it would take long, and nobody has them."""
LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
DEFAULT_UTILIZATION = 0.92  # vLLM 0.32's default (vllm/config/cache.py)
UNSAID_LENGTH = 4096
NO_ATTENTION = ("the recipe has neither `attention` nor `config`", "config.json: no layer keeps anything")
UNKNOWN_LIMIT = 1 << 40
"""Tokens that no cache holds: the bound of the search where config.json does not say what the model allows."""
LAYERWISE_FROM = "0.19"
"""The vLLM that quantises a layer at a time (PR 31914 of January 2026, in its documentation since March); earlier ones
held the BF16 weights first."""
SETTLED_FROM, CAPACITY_FROM = (0, 26), (0, 24)
"""From where on a window keeps the tokens of two batches (PR 47728), and the log counts by requests (first seen)."""
LOADERS = {"instanttensor": 4.4}
"""GiB that a load-format takes beside the weights (reported by three owners of Sparks; others: not known)."""
LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""Keys of config.json for the longest context, of which vLLM takes the least."""
BATCHED_TOKENS = ((160, 16384), (70, 8192), (0, 2048))
"""vLLM's max-num-batched-tokens by the GiB of a GPU, where no flag says it (engine/arg_utils.py)."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What is known of a model: its checkpoint and its drafter's, or nothing but the recipe."""

    checkpoint: Checkpoint | None = None
    drafter: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be counted. `length`: tokens of a sequence, None: the longest that fits; `leave`: GiB that stay free
    on the host, instead of what gpu-memory-utilization says; `acceptance`: share of the drafted tokens that are
    accepted; `release`: of vLLM, None for the newest that is known."""

    tp: int = 1
    pp: int = 1
    length: int | None = UNSAID_LENGTH
    sequences: int = 1
    card: Card = CARDS[SPARK]
    memory: float = CARDS[SPARK].memory_gib
    leave: float | None = None
    acceptance: float | None = None
    release: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """One host. `parts`: of the weights, by what they are for, empty where only their sum is known; `unknown`: of them,
    tensors that no rule names. Fields of the cache are None where it is not known (`cache_why`)."""

    tp: int
    pp: int
    total: float
    loading: float
    weights: float
    parts: Mapping[str, float]
    unknown: float
    share: float
    room: float  # what is left for the cache, or was asked for by kv-cache-memory-bytes
    cache_why: str
    block_bytes: int | None
    blocks: int | None
    tokens: int | None
    length: int | None
    sequences: int
    needed: float | None  # what the sequences take
    longest: int | None  # tokens of a sequence, so that all fit
    most: int | None  # sequences of `length`
    left: float  # free beside vLLM's share, its processes and the system
    utilization: float  # the gpu-memory-utilization that this is
    ceiling_t_s: float | None
    ceiling_why: str
    wrong: tuple[str, ...]  # why it does not fit, or vLLM refuses to start
    verdict: Literal["fits", "does not fit", "unknown"]  # unknown: the weights fit, the cache is not counted


def fit(recipe: Recipe, model: KnownModel, asked: Asked) -> Fit:
    """Count one host. Raises UsageError: a flag that is none, or nothing says how large the weights are."""
    flags = serve_flags(recipe.vllm)
    with reading("weights"):
        ranks = weights_on_ranks(recipe, model, asked)
        ceiling, ceiling_why = ceiling_of(recipe, model, asked, ranks)
    parts, unknown, weights, loading = weights_of_host(recipe, model, asked, ranks)
    cache, why = known_cache(recipe, model, asked)
    beside, size = beside_gib(asked.card), asked.memory
    given = flags.get("kv-cache-memory-bytes")
    if given is not None and asked.leave is None:  # the cache's bytes are exact, the share follows
        room = _count("kv-cache-memory-bytes", given) / GIB
        share = weights + GRAPHS_GIB + room
    else:
        share = utilization(recipe) * size if asked.leave is None else size - beside - asked.leave
        room = share - weights - GRAPHS_GIB
    length, limit = asked.length, (model.checkpoint and context_of(model.checkpoint.config)) or UNKNOWN_LIMIT
    room_bytes = int(max(0.0, room) * GIB)
    longest = cache.longest(room_bytes, asked.sequences, limit) if cache else None
    longest = None if longest == UNKNOWN_LIMIT else longest  # windows and states take no more, whatever the length
    length = longest if length is None else length
    tokens = needed = most = None
    if cache and length:
        by_request = asked.release is None or asked.release >= CAPACITY_FROM
        tokens = cache.tokens(room_bytes, length) if by_request else cache.tokens_by_group(room_bytes)
        needed = cache.needed(length, asked.sequences) / GIB
        most = max(0, (cache.blocks(room_bytes) - 1) // cache.blocks_a_request(length))
    left = size - beside - share
    refused = tuple(refusals(recipe, model, asked))
    found = {
        f"the weights take {loading:.1f} GiB while they are loaded": loading + beside > size,
        f"vLLM's share of {share:.1f} GiB leaves no room for a cache": room <= 0,
        f"the cache asked for is {needed or 0:.1f} GiB, there is room for {room:.1f}": 0 < room < (needed or 0),
        f"{-left:.1f} GiB are missing beside vLLM's share: lower {lever_of(recipe)}": left < -1e-9,
    }
    wrong = (*refused, *(reason for reason, holds in found.items() if holds))
    return Fit(
        tp=asked.tp,
        pp=asked.pp,
        total=size,
        loading=loading,
        weights=weights,
        parts=parts,
        unknown=unknown,
        share=share,
        room=room,
        cache_why=why,
        block_bytes=cache.block_bytes if cache else None,
        blocks=cache.blocks(room_bytes) if cache else None,
        tokens=tokens,
        length=length,
        sequences=asked.sequences,
        needed=needed,
        longest=longest,
        most=most,
        left=left,
        utilization=share / size,
        ceiling_t_s=ceiling,
        ceiling_why=ceiling_why,
        wrong=wrong,
        verdict="does not fit" if wrong else "fits" if cache else "unknown",
    )


def refusals(recipe: Recipe, model: KnownModel, asked: Asked) -> Iterator[str]:
    """Why vLLM would not start, whatever the memory (`verify_with_parallel_config`, `divide`,
    `_get_and_verify_max_len` of vLLM 0.32). Raises UsageError for a config.json that is none."""
    config, tp = model.checkpoint.config if model.checkpoint else recipe.config, asked.tp
    with reading("layers"):
        text = text_of(config)
        heads, layers = int(text.get("num_attention_heads") or 0), int(text.get("num_hidden_layers") or 0)
        kept = {one.kv_heads for one in recipe.attention}
        if config:
            full = range(layers if heads and not text.get("kv_lora_rank") else 0)
            kept = {heads_of(text, layer)[0] for layer in full}
    if heads % tp:
        yield f"{heads} heads are not divisible by {tp}"
    elif uneven := [str(own) for own in sorted(kept) if max(own, tp) % min(own, tp)]:
        yield f"{' and '.join(uneven)} key-value heads are not divisible by {tp}, nor {tp} by them"
    if 0 < layers < asked.pp:
        yield f"{asked.pp} pipeline stages are more than the model's {layers} layers"
    limit = context_of(model.checkpoint.config) if model.checkpoint else None
    allowed = recipe.env.get(LONGER, "").strip().lower() in ("1", "true") or "hf-overrides" in recipe.vllm
    ropes = str(text.get("rope_parameters") or text.get("rope_scaling"))
    if limit and asked.length and asked.length > limit and not allowed and "yarn" not in ropes:
        yield f"{asked.length} tokens are more than the {limit} that the model allows; {LONGER}=1 lifts this"


def wanted_length(recipe: Recipe, model: KnownModel) -> int | None:
    """Tokens of a sequence by max-model-len, else by config.json, None for auto. Raises UsageError."""
    found = recipe.vllm.get("max-model-len")
    if found is None:
        return (context_of(model.checkpoint.config) if model.checkpoint else None) or UNSAID_LENGTH
    try:
        length = read_length(found)
    except ValueError as error:
        raise UsageError(f"vllm.{error}", code="value-invalid") from None
    return None if length == AUTO else length


def context_of(config: Mapping[str, Any]) -> int | None:
    """The longest context that vLLM allows by a config.json, None where it does not say. Raises UsageError.

    As `_get_and_verify_max_len` of vLLM 0.32; YaRN's factor is in max_position_embeddings already.
    """
    with reading("longest context"):
        text = text_of(config)
        check(text)
        found = [int(text[key]) for key in LENGTHS if text.get(key)]
        if not found:
            return None
        factor, ropes = 1.0, text.get("rope_parameters") or text.get("rope_scaling") or {}
        for rope in (ropes, *(one for one in ropes.values() if isinstance(one, Mapping))):
            if rope.get("rope_type", rope.get("type")) in ("linear", "dynamic", "ntk"):
                factor = float(rope.get("factor") or 1)
        return int((text.get("model_max_length") or min(found)) * (1 if family_of(text) == "gemma3" else factor))


def release_of(image: str) -> tuple[int, int] | None:
    """The vLLM release that an image's tag names (`v0.28.0`), None when it names none."""
    found = re.search(r"[:-]v(\d+)\.(\d+)\b", image)
    return (int(found[1]), int(found[2])) if found else None


def beside_gib(card: Card) -> float:
    """What the system and the programs beside the GPU's share take of its memory: nothing of a card's own."""
    return 0.0 if card.own_memory else SYSTEM_GIB + HOST_SIDE_GIB


def utilization(recipe: Recipe) -> float:
    """vLLM's share of the memory. Raises UsageError for what is none."""
    try:
        return read_share(recipe.vllm.get("gpu-memory-utilization", DEFAULT_UTILIZATION))
    except ValueError as error:
        raise UsageError(f"vllm.{error}", code="value-invalid") from None


def lever_of(recipe: Recipe) -> str:
    """The flag that decides the cache: with kv-cache-memory-bytes, vLLM does not read gpu-memory-utilization."""
    exact = "kv-cache-memory-bytes"
    return exact if exact in serve_flags(recipe.vllm) else "gpu-memory-utilization"


def _count(flag: str, value: Any) -> int:
    try:
        return read_count(flag, value)
    except ValueError as error:
        raise UsageError(f"vllm.{error}", code="value-invalid") from None


def drafting(recipe: Recipe) -> Mapping[str, Any]:
    """What a recipe says of drafting; empty without."""
    return drafting_of(serve_flags(recipe.vllm))


def drafted_of(recipe: Recipe) -> int:
    """Tokens drafted for one step, 0 where none or it is not said. Raises UsageError for what is no count."""
    return _drafting_count(recipe, "num_speculative_tokens", 0)


def _drafting_count(recipe: Recipe, key: str, default: int) -> int:
    found = drafting(recipe).get(key)
    count = default if found is None else _count(f"speculative-config.{key}", found)
    if count > MOST:
        what = f"vllm.speculative-config.{key}: found {count}, expected at most {MOST}"
        raise UsageError(what, code="value-invalid")
    return count


def serving_of(recipe: Recipe, asked: Asked, config: Mapping[str, Any]) -> CacheFlags:
    """What decides the cache, from a recipe's flags with vLLM's defaults on NVIDIA GPUs."""
    flags, text = serve_flags(recipe.vllm), text_of(config)
    dtype = str(flags.get("kv-cache-dtype", "auto"))
    default = next(tokens for least, tokens in BATCHED_TOKENS if asked.memory >= least)
    latent = "kv_lora_rank" in text
    settled = asked.release is None or asked.release >= SETTLED_FROM
    asynchronous = settled and flags.get("async-scheduling", True) is not False
    return CacheFlags(
        tp=asked.tp,
        cache_dtype=cache_dtype_of(config) if dtype == "auto" else dtype,
        dtype=str(flags.get("dtype", "auto")),
        state_dtype=str(flags.get("mamba-ssm-cache-dtype", "auto")),
        block=_count("block-size", flags.get("block-size", 64 if latent else 16)),
        batched_tokens=_count("max-num-batched-tokens", flags.get("max-num-batched-tokens", default)),
        in_flight=max(asked.pp, 2 if asynchronous else 1),
        drafted=drafted_of(recipe),
        aligned_states=flags.get("enable-prefix-caching", True) is not False,
        context_parallel=_count("decode-context-parallel-size", flags.get("decode-context-parallel-size", 1)),
    )


def known_cache(recipe: Recipe, model: KnownModel, asked: Asked) -> tuple[Cache | None, str]:
    """The cache of the fullest pipeline stage, or why it is not known."""
    config = model.checkpoint.config if model.checkpoint else recipe.config
    serving = serving_of(recipe, asked, config)
    try:
        if config or model.checkpoint:
            kept = kept_layers(config, serving)
            if model.drafter:
                kept += kept_layers(model.drafter.config, serving)
        else:
            kept = shapes(recipe.attention, serving)
        kept = tuple(replace(one, layers=-(-one.layers // asked.pp)) for one in kept)
        return (cache_of(kept, serving), "") if kept else (None, NO_ATTENTION[bool(model.checkpoint)])
    except UsageError as error:
        return None, error.what


def shapes(attention: Sequence[AttentionLayers], serving: CacheFlags) -> tuple[KeptLayers, ...]:
    """The recipe's `attention` as layers."""
    width = value_width({}, serving)
    return tuple(
        KeptLayers(
            "window" if one.window else "all",
            one.layers,
            serving.block,
            serving.block * 2 * max(1, one.kv_heads // serving.tp) * one.head_dim * width,
            one.window or 0,
        )
        for one in attention
    )


def sharding_of(recipe: Recipe, asked: Asked) -> Sharding:
    """How the recipe's flags place the weights."""
    flags = serve_flags(recipe.vllm)
    limits = flags.get("limit-mm-per-prompt")
    return Sharding(
        asked.tp,
        asked.pp,
        drafted=bool(drafting(recipe)) and drafter_of(drafting(recipe)) is None,
        width=4.0 if flags.get("dtype") in ("float32", "float") else 2.0,
        made=1.0 if _is_made(recipe) else None,
        tower_copied=flags.get("mm-encoder-tp-mode") == "data",
        text_only=flags.get("language-model-only") is True
        or (isinstance(limits, dict) and bool(limits) and not any(limits.values())),
    )


def weights_of_host(
    recipe: Recipe, model: KnownModel, asked: Asked, ranks: Sequence[RankWeights]
) -> tuple[dict[str, float], float, float, float]:
    """By part, unknown, all together, and the most while they are loaded: of the host that holds most."""
    extra = LOADERS.get(str(recipe.vllm.get("load-format")), 0.0)
    if model.checkpoint is None:
        return {}, 0.0, *_by_the_recipe(recipe, asked, extra)
    rank = max(ranks, key=lambda one: one.total)
    whole = sum(tensor.bytes for tensor in model.checkpoint.tensors) / asked.tp / asked.pp
    if _is_made(recipe):
        extra += (whole - rank.total if quantises_whole(recipe, asked.release) else rank.largest_layer) / GIB
    total = rank.total / GIB
    return {name: size / GIB for name, size in rank.parts.items()}, rank.unknown / GIB, total, total + max(0.0, extra)


def weights_on_ranks(recipe: Recipe, model: KnownModel, asked: Asked) -> tuple[RankWeights, ...]:
    """By pipeline stage, a drafter of its own on the last; empty when no checkpoint was read."""
    if model.checkpoint is None:
        return ()
    ranks = on_ranks(model.checkpoint.tensors, model.checkpoint.config, sharding_of(recipe, asked))
    if model.drafter:
        tp = _drafting_count(recipe, "draft_tensor_parallel_size", asked.tp)
        own = on_ranks(model.drafter.tensors, model.drafter.config, Sharding(tp))
        ranks[-1].parts["drafter"] += own[0].total
    return ranks


def _by_the_recipe(recipe: Recipe, asked: Asked, extra: float) -> tuple[float, float]:
    """Weights of a host and the most while they are loaded, from the recipe's own numbers."""
    if recipe.weights_gib is None:
        raise UsageError(
            f"recipe {recipe.name} has no weights_gib, so nothing can be counted",
            code="weights-gib-missing",
            remedy="--set weights_gib=N, the size of the model's files",
        )
    hosts, files = asked.tp * asked.pp, recipe.weights_gib
    loaded = recipe.parameters_b * 1e9 / GIB if _is_made(recipe) and recipe.parameters_b is not None else files
    if loaded < files:
        layers = sum(shape.layers for shape in recipe.attention)
        extra += (
            (files - loaded) / hosts
            if quantises_whole(recipe, asked.release)
            else (files / layers / hosts if layers else 0.0)
        )
    return loaded / hosts, loaded / hosts + extra


def quantises_whole(recipe: Recipe, release: tuple[int, int] | None) -> bool:
    """Whether this vLLM, else one that the recipe allows, holds all weights as in the files before it quantises."""
    allowed, older = SpecifierSet(recipe.needs.vllm), range(int(LAYERWISE_FROM.partition(".")[2]))
    if release:
        return _is_made(recipe) and release < (0, len(older))
    return _is_made(recipe) and any(allowed.contains(f"0.{minor}", prereleases=True) for minor in older)


def _is_made(recipe: Recipe) -> bool:
    """Whether vLLM itself quantises BF16 weights while it loads them, to one byte a parameter."""
    return recipe.vllm.get("quantization") == "fp8"


def ceiling_of(
    recipe: Recipe, model: KnownModel, asked: Asked, ranks: Sequence[RankWeights]
) -> tuple[float | None, str]:
    """Tokens a second of one client that the memory's bandwidth allows, and what it is from.

    A dense model reads all weights but the embeddings for a token; a mixture the experts that one token takes, on
    average; with drafting one step reads for all drafted tokens and gives the accepted ones and one more.
    """
    drafted, accepted = drafted_of(recipe), asked.acceptance
    if drafted and accepted is None:
        return None, "speculative decoding gives several tokens for one reading; --acceptance says how many"
    tokens = sum((accepted or 0.0) ** at for at in range(drafted + 1))
    said = f", {tokens:.2f} tokens a step at an acceptance of {accepted:g}" if drafted else ""
    if model.checkpoint is None:  # what the drafter reads is not known then
        plain = {flag: value for flag, value in recipe.vllm.items() if flag.partition(".")[0] != "speculative-config"}
        reading = bytes_a_token(recipe.model_copy(update={"vllm": plain}))
        rate = reading.ceiling_t_s(asked.card, asked.tp)
        return (tokens * rate if rate else None), reading.why + said
    text = text_of(model.checkpoint.config)
    step = 0.0
    if ranks:  # the last stage's head; tied: the rows of its embeddings
        step += ranks[-1].parts.get("head", ranks[-1].parts.get("embeddings", 0.0))
    for rank in ranks:  # stages read one after the other
        parts = rank.parts
        step += parts.get("layers", 0.0)
        step += parts.get("experts", 0.0) * experts_read(text, drafted + 1)
        step += drafted * parts.get("drafter", 0.0)
    return (tokens * asked.card.bytes_per_s / step if step else None), f"{step / GIB:.1f} GiB read a step{said}"


def experts_read(text: Mapping[str, Any], tokens: int) -> float:
    """The share of the experts that some of `tokens` take, if each takes its own by chance; 1 where it is not known."""
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    experts = next((int(text[name]) for name in names if text.get(name)), 0)
    taken = text.get("num_experts_per_tok") or text.get("top_k_experts")
    if not experts or not taken:
        return 1.0
    return float(1 - (1 - int(taken) / experts) ** tokens)


def line_of(wanted: Wanted, card: Card | None, memory: float) -> str:
    """What `cluster fit` says of one host of `memory` GiB, for when that is short; empty when it cannot be counted.

    Asks nobody: from headers that this machine has, else the recipe's own numbers. `card`: None counts as a Spark's.
    """
    recipe = wanted.recipe.model_copy(update={"vllm": wanted.flags})
    asked = Asked(wanted.tp, wanted.pp, card=card or CARDS[SPARK], memory=memory, release=release_of(recipe.image))
    try:
        model = KnownModel(known_checkpoint(recipe.model, recipe.revision))
        one = fit(recipe, model, replace(asked, length=wanted_length(recipe, model)))
    except UsageError:
        return ""
    held = f"weights {one.weights:.1f} + graphs {GRAPHS_GIB:.1f} + cache {one.room:.1f}"
    beside = f" + system and processes {beside_gib(asked.card):.1f}" if beside_gib(asked.card) else ""
    left = f"{one.left:.1f} left" if one.left >= 0 else f"{-one.left:.1f} missing"
    return f"cluster fit counts {held}{beside} of {memory:.1f} GiB on each host: {left}"
