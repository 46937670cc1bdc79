"""What each layer of a model keeps of past tokens, from its config.json, as vLLM 0.32 allots it on one rank.

Bytes; sources are vLLM's `get_kv_cache_spec` of the layer named beside each. A kind of layer that is not known here is
an error, never a guess.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cluster.errors import UsageError

Kind = Literal["all", "window", "state", "ring"]
"""Of what a layer keeps: all tokens, the last `window`, a state of fixed size, or one block of a few raw keys."""

_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "auto": 0}
_ALIGNED = 576
"""Bytes that a page of DeepSeek's packed layout is a multiple of (`alignment`)."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Layers of one shape. `page` is the bytes of one layer's block, which holds `block` tokens (of a state: one)."""

    kind: Kind
    layers: int
    block: int
    page: int
    window: int = 0
    copied: bool = False  # a state that each rank has complete is in a group of its own


@dataclass(frozen=True, slots=True)
class Serving:
    """vLLM's flags that decide how much is kept, with its defaults.

    `in_flight`: batches that are scheduled and not settled; `drafted`: tokens drafted for one step; `state_blocks`: of a
    request in a group of states (2 + drafted with mamba-cache-mode align, 1 + drafted without).
    """

    tp: int = 1
    cache_dtype: str = "auto"
    state_dtype: str = "auto"
    block: int = 16
    batched_tokens: int = 8192
    in_flight: int = 2
    drafted: int = 0
    aligned_states: bool = True
    context_parallel: int = 1

    @property
    def state_blocks(self) -> int:
        return (2 if self.aligned_states else 1) + self.drafted


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config.json."""
    inner = config.get("text_config") or config.get("llm_config") or config
    return inner if isinstance(inner, Mapping) else config


def kept_layers(config: Mapping[str, Any], serving: Serving) -> tuple[Kept, ...]:
    """Every layer that keeps something, by shape. Raises UsageError for what is not known."""
    text = text_of(config)
    try:
        family = str(text.get("model_type", ""))
        if family.startswith("deepseek_v4"):
            found = tuple(_deepseek_v4(text))
        elif family.startswith("deepseek_v41") or "compress_ratios" in text:
            raise ValueError(f"model_type {family}")
        else:
            found = tuple(_layers(text, serving))
        return align_states(found, serving, latent="kv_lora_rank" in text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"config.json: the cache of this model is not known here: {error!r}", code="model-config-unknown"
        ) from None


def align_states(kept: tuple[Kept, ...], serving: Serving, *, latent: bool = False) -> tuple[Kept, ...]:
    """Where layers keep a state, blocks of the others are enlarged until a page holds it, and it takes a page.

    `latent`: multi-head latent attention, whose blocks are multiples of 128 (`_align_hybrid_block_size`).
    """
    state = max((one.page for one in kept if one.kind == "state"), default=0)
    all_tokens = [one for one in kept if one.kind == "all"]
    if not state or not all_tokens:
        return kept
    first = all_tokens[0]
    token = first.page // first.block
    multiple = max(serving.block, 128 if latent else 16)
    block = max(multiple * math.ceil(state / (multiple * token)), serving.block)

    def aligned(one: Kept) -> Kept:
        if one.kind == "state":
            return replace(one, page=block * token)
        return replace(one, block=block, page=one.page * block // one.block) if one.kind == "all" else one

    return tuple(map(aligned, kept))


def _layers(text: Mapping[str, Any], serving: Serving) -> Iterator[Kept]:
    kinds = _kinds(text)
    linear, window = kinds.pop("linear", 0), kinds.pop("window", 0)
    complete = kinds.pop("all", 0)
    if kinds:
        raise ValueError(f"layers of type {', '.join(sorted(kinds))}")
    drafting = int(text.get("mtp_num_hidden_layers") or text.get("num_nextn_predict_layers") or 0)
    complete += min(drafting, 1) if serving.drafted and complete else 0
    heads = text.get("num_key_value_heads") or text.get("num_attention_heads")
    size = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    width = value_width(text, serving)
    if "kv_lora_rank" in text and text["kv_lora_rank"]:
        if window:
            raise ValueError("latent attention with a window")
        yield from _latent(text, serving, complete, width)
    elif complete:
        all_heads = text.get("num_global_key_value_heads") or heads
        yield _all(complete, serving, _heads(all_heads, serving), text.get("global_head_dim") or size, width)
        if "indexer_compress_ratio" in text and text["indexer_compress_ratio"]:
            yield from _compressed_keys(text, serving, complete)
    if window:
        page = serving.block * _heads(heads, serving) * 2 * size * width
        yield Kept("window", window, serving.block, page, int(text["sliding_window"]))
    if linear:
        yield Kept("state", linear, 1, _state(text, serving))
    if text.get("ple_layer_ids"):  # Qwen's n-gram layers keep the input of a short convolution
        steps = (text["ple_conv_kernel_size"] - 1) * text["ngram_size"] + serving.drafted
        page = text["hidden_size"] * text["hc_count"] * steps * 2
        yield Kept("state", len(text["ple_layer_ids"]), 1, page, copied=True)


def _kinds(text: Mapping[str, Any]) -> Counter[str]:
    """How many layers of each kind; names that are not known stay."""
    count = int(text["num_hidden_layers"])
    names = {
        "full_attention": "all",
        "attention": "all",
        "indexed_attention": "all",
        "qwen_sparse_attention": "all",
        "sliding_attention": "window",
        "linear_attention": "linear",
    }
    if pattern := text.get("hybrid_override_pattern"):  # Nemotron: M state, * attention, - and E no cache
        letters = Counter(str(pattern))
        return Counter({"linear": letters.pop("M", 0), "all": letters.pop("*", 0)}) + Counter(
            {letter: letters[letter] for letter in letters if letter not in "-E"}
        )
    types = text.get("layer_types")
    if not types and (every := text.get("full_attention_interval")):
        types = ["full_attention" if at % every == every - 1 else "linear_attention" for at in range(count)]
    if not types and text.get("sliding_window") and text.get("use_sliding_window", True):
        if text.get("sliding_window_pattern"):
            every = int(text["sliding_window_pattern"])
            types = ["full_attention" if at % every == every - 1 else "sliding_attention" for at in range(count)]
        else:
            types = ["sliding_attention"] * count
    types = list(types or ["full_attention"] * count)
    if shared := int(text.get("num_kv_shared_layers") or 0):  # Gemma: the last ones read what an earlier one keeps
        types = types[:-shared]
    return Counter(names.get(str(name), str(name)) for name in types)


def value_width(text: Mapping[str, Any], serving: Serving) -> int:
    """Bytes of one value of the cache. Raises ValueError for a cache dtype that is not counted here."""
    dtype = serving.cache_dtype
    if dtype.startswith("fp8") and "per_token" not in dtype:
        return 1
    if dtype in _WIDTHS:
        named = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16").removeprefix("torch.")
        return _WIDTHS[dtype] or _WIDTHS[named]
    raise ValueError(f"kv-cache-dtype {dtype}")


def _heads(heads: int, serving: Serving) -> int:
    """Key-value heads of one rank: a head is never split, so from TP = heads on it is copied."""
    return max(1, int(heads) // serving.tp)


def _all(layers: int, serving: Serving, heads: int, size: int, width: int) -> Kept:
    return Kept("all", layers, serving.block, serving.block * heads * 2 * size * width)  # FullAttentionSpec


def _latent(text: Mapping[str, Any], serving: Serving, layers: int, width: int) -> Iterator[Kept]:
    """Multi-head latent attention (MLAAttentionSpec): one vector a token, not divided by TP; with an indexer, FP8 is
    packed with its scales (`fp8_ds_mla`) and a key of the indexer is kept beside it."""
    sparse = text.get("index_head_dim")
    token = (text["kv_lora_rank"] + text.get("qk_rope_head_dim", 0)) * width
    if sparse and width == 1:
        token = 656
    yield Kept("all", layers, serving.block, serving.block * token)
    if sparse:
        pool = int(text.get("index_kpool") or 1)
        yield Kept("all", layers, serving.block, serving.block // pool * (text["index_head_dim"] + 4))
        if pool > 1:  # Glm5NextTailCache: raw keys and gate scores of the pool that is not complete
            ring = pool * (1 << max(0, math.ceil((pool + serving.drafted) / pool) - 1).bit_length())
            yield Kept("ring", layers, ring, ring * 2 * text["index_head_dim"] * 2)


def _compressed_keys(text: Mapping[str, Any], serving: Serving, layers: int) -> Iterator[Kept]:
    """Qwen's sparse attention: a BF16 key for each group of tokens, and a ring of the open group's keys and positions
    (QSACompressedKeyCache, QSAKeyStateCache)."""
    size, group = int(text["indexer_head_dim"]), int(text["indexer_compress_ratio"])
    yield Kept("all", layers, serving.block, serving.block // group * size * 2)
    ring = group * math.ceil((group + serving.drafted) / group)
    yield Kept("ring", layers, ring, ring * (math.ceil(size / 4) * 4 + 12) * 2)


def _state(text: Mapping[str, Any], serving: Serving) -> int:
    """Bytes of one request's state in one linear layer (MambaStateShapeCalculator of the kind)."""
    named = str(text.get("mamba_ssm_dtype") or "auto") if serving.state_dtype == "auto" else serving.state_dtype
    wide = _WIDTHS[named] or 2
    if "linear_num_value_heads" in text:  # gated delta net
        heads, size = text["linear_num_value_heads"], text["linear_value_head_dim"]
        keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
        conv, steps = 2 * keys + heads * size, text["linear_conv_kernel_dim"] - 1
        state = heads * size * text["linear_key_head_dim"]
    elif "linear_num_heads" in text:  # Kimi delta attention, FP32 unless a flag says otherwise
        heads, size = text["linear_num_heads"], text["linear_head_dim"]
        conv, steps, state = 3 * heads * size, text["linear_conv_kernel_dim"] - 1, heads * size * size
        wide = _WIDTHS[serving.state_dtype] or 4
    elif "mamba_num_heads" in text:  # Mamba 2
        heads, size, groups = text["mamba_num_heads"], text["mamba_head_dim"], text["n_groups"]
        groups = groups if groups % serving.tp == 0 else serving.tp
        conv, steps = heads * size + 2 * groups * text["ssm_state_size"], text["conv_kernel"] - 1
        state, wide = heads * size * text["ssm_state_size"], _WIDTHS[named] or 4
    else:
        raise ValueError("linear layers without linear_num_value_heads, linear_num_heads or mamba_num_heads")
    return int(state // serving.tp * wide + conv // serving.tp * (steps + serving.drafted) * 2)


def _deepseek_v4(text: Mapping[str, Any]) -> Iterator[Kept]:
    """DeepSeek-V4: per layer a window of 584-byte states; where a layer compresses 4:1 or 128:1 one state a group,
    the raw keys and scores of open groups, and with 4:1 the same of the indexer (132 bytes a state)."""
    block, ratios = 256, Counter(max(1, int(ratio)) for ratio in text["compress_ratios"])
    fours, many = ratios.pop(4, 0), ratios.pop(128, 0)
    plain = ratios.pop(1, 0)
    if ratios:
        raise ValueError(f"compress_ratios {sorted(ratios)}")
    size, index = int(text["head_dim"]), int(text["index_head_dim"])

    def page(content: int) -> int:
        return math.ceil(content / _ALIGNED) * _ALIGNED

    yield Kept("all", fours, block, page(block // 4 * 584))
    yield Kept("all", fours, block, page(block // 4 * (index + 4)))
    yield Kept("all", many, block, page(block // 128 * 584))
    yield Kept("window", fours, 4, page(4 * 2 * 2 * size * 4), 8)
    yield Kept("window", fours, 4, page(4 * 2 * 2 * index * 4), 8)
    yield Kept("window", many, 8, page(8 * 2 * size * 4), 128)
    yield Kept("window", fours + many + plain, 64, page(64 * 584), int(text["sliding_window"]))
