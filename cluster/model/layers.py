"""What each layer of a model keeps of past tokens, from its config.json, as vLLM 0.32 allots it on one rank.

Bytes; sources are vLLM's `get_kv_cache_spec` of the layer named beside each. A kind of layer that is not known here is
an error, never a guess.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard

from cluster.errors import UsageError

Kind = Literal["all", "window", "state", "ring"]
"""Of what a layer keeps: all tokens, the last `window`, a state of fixed size, or one block of a few raw keys."""

_NAMES = """
    llama mistral ministral3 mixtral qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe qwen3_vl qwen3_vl_moe phi3
    gemma gemma2 gemma3 gemma3n gemma4 gpt_oss granite granitemoe glm4 glm4_moe cohere2 olmo2 olmo3 starcoder2 smollm3
    minimax_m2 ernie4_5 ernie4_5_moe exaone4 seed_oss hunyuan_v1_dense hunyuan_v1_moe apertus dots1 arcee nemotron
    deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 glm_moe_dsa glm4_moe_lite deepseek_v4
    qwen3_next qwen3_5 qwen3_5_moe qwen4_exp glm5_next nemotron_h
"""
FAMILIES = frozenset(_NAMES.split())
"""config.json's model_type, without `_text`, of what is counted here: attention over all tokens or a window, latent,
DeepSeek-V4's, and hybrids with linear layers."""
_GEMMA = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072}
_UNSAID: Mapping[str, Mapping[str, Any]] = {
    **{name: {"use_sliding_window": False} for name in FAMILIES if name.startswith(("qwen2", "qwen3", "smollm3"))},
    **{key: {"head_dim": 256, "full_attention_interval": 4} for key in ("qwen3_next", "qwen3_5", "qwen3_5_moe")},
    **{key: {"sliding_window_pattern": 4, "sliding_window": 4096} for key in ("cohere2", "olmo3", "exaone4")},
    "gpt_oss": {"sliding_window_pattern": 2, "sliding_window": 128, "head_dim": 64, "max_position_embeddings": 131072},
    "gemma": _GEMMA | {"num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 8192},
    "gemma2": _GEMMA | {"sliding_window_pattern": 2, "sliding_window": 4096, "max_position_embeddings": 8192},
    "gemma3": _GEMMA | {"sliding_window_pattern": 6, "sliding_window": 4096},
    "gemma3n": _GEMMA
    | {"num_key_value_heads": 2, "max_position_embeddings": 32768, "num_kv_shared_layers": 15}
    | {"sliding_window_pattern": 5, "sliding_window": 512},
    "gemma4": _GEMMA | {"sliding_window_pattern": 6, "sliding_window": 512, "global_head_dim": 512},
}
"""What a config.json means where it says nothing: the defaults of a family's class (transformers 5.19,
configuration_*.py). Gemma 3 was published without them."""
_COUNTS = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings")
_SIZES = (
    "head_dim",
    "global_head_dim",
    "hidden_size",
    "sliding_window",
    "num_kv_shared_layers",
    "num_experts",
    "num_experts_per_tok",
    "n_routed_experts",
    "num_local_experts",
    "top_k_experts",
    "full_attention_interval",
)
_FORMS: Mapping[str, type] = {
    "layer_types": list,
    "per_layer_config": dict,
    "rope_parameters": dict,
    "rope_scaling": dict,
}
_MOST_LAYERS = 10_000  # what has more is no model's config.json, and takes long to count
_WIDTHS = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "auto": 0}
_ALIGNED = 576
"""Bytes that a page of DeepSeek's packed layout is a multiple of (`alignment`)."""


@dataclass(frozen=True, slots=True)
class KeptLayers:
    """Layers of one shape. `page` is the bytes of one layer's block, which holds `block` tokens (of a state: one)."""

    kind: Kind
    layers: int
    block: int
    page: int
    window: int = 0
    copied: bool = False  # a state that each rank has complete is in a group of its own


@dataclass(frozen=True, slots=True)
class CacheFlags:
    """vLLM's flags that decide how much is kept, with its defaults.

    `in_flight`: batches that are scheduled and not settled; `drafted`: tokens drafted for one step; `state_blocks`: of
    a request in a group of states (2 + drafted with mamba-cache-mode align, 1 + drafted without).
    """

    tp: int = 1
    cache_dtype: str = "auto"
    dtype: str = "auto"
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
    """The language model's part of a config.json, with what its class adds: defaults, the types of the layers."""
    inner = config.get("text_config") or config.get("llm_config") or config
    given = inner if isinstance(inner, Mapping) else config
    text = {**_UNSAID.get(family_of(given), {}), **given}
    every, count = text.get("sliding_window_pattern"), text.get("num_hidden_layers")
    every = len(every) if isinstance(every, str) else every  # EXAONE: LLLG is 4
    said = text.get("layer_types") or text.get("full_attention_interval") or not text.get("sliding_window")
    if not said and _is_count(every) and _is_count(count) and count <= _MOST_LAYERS:
        names = ("full_attention", "sliding_attention")
        text["layer_types"] = [names[(at + 1) % every > 0] for at in range(count)]
    return text


def family_of(text: Mapping[str, Any]) -> str:
    """The model_type of a config.json's language model, without `_text`."""
    return str(text.get("model_type")).removesuffix("_text")


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def check(text: Mapping[str, Any]) -> None:
    """Raise UsageError for a key of a config.json that is there and says what none does."""

    def refuse(key: str, expected: str) -> UsageError:
        what = f"config.json: {key}: expected {expected}, found {text[key]!r}"
        return UsageError(what, code="model-config-unknown")

    for key, found in text.items():
        if found is None:
            continue
        if key in _COUNTS + _SIZES and not _is_count(found) and (key in _COUNTS or found != 0):
            raise refuse(key, f"a whole number of {int(key in _COUNTS)} or more")
        if key == "sliding_window_pattern" and not _is_count(found) and not re.fullmatch("[LG]+", str(found)):
            raise refuse(key, "a whole number of 1 or more, or letters as LLLG")
        if not isinstance(found, _FORMS.get(key, object)):
            raise refuse(key, "a list" if _FORMS[key] is list else "a mapping")
    if (text.get("num_hidden_layers") or 0) > _MOST_LAYERS:
        raise refuse("num_hidden_layers", f"at most {_MOST_LAYERS}")


def cache_dtype_of(config: Mapping[str, Any]) -> str:
    """What kv-cache-dtype auto means: what the checkpoint's quantization asks for, else auto.

    By `get_kv_cache_quant_algo_string` (ModelOpt) and `Attention` (compressed-tensors) of vLLM.
    """
    own, other = config.get("quantization_config"), config.get("compression_config")
    given = own or other or text_of(config).get("quantization_config")
    found: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    inner = found.get("quantization")
    found = {**found, **inner} if isinstance(inner, Mapping) else found
    asked = found.get("kv_cache_scheme") or found.get("kv_cache_quant_algo")
    if isinstance(asked, Mapping):
        asked = {"float8": "fp8", "float4": "nvfp4"}.get(f"{asked.get('type')}{asked.get('num_bits')}")
    asked = str(asked).lower()
    return asked if asked in ("fp8", "nvfp4") else "auto"


@contextmanager
def reading(what: str) -> Iterator[None]:
    """A config.json that says something else than a model's does is one UsageError."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, ZeroDivisionError) as error:
        said = f"key {error} is missing or not known" if isinstance(error, KeyError) else str(error)
        why = f"config.json: the {what} of this model cannot be counted: {said}"
        raise UsageError(why, code="model-config-unknown") from None


def kept_layers(config: Mapping[str, Any], serving: CacheFlags) -> tuple[KeptLayers, ...]:
    """Every layer that keeps something, by shape. Raises UsageError for what is not known."""
    text = text_of(config)
    with reading("cache"):
        check(text)
        family = family_of(text)
        if family not in FAMILIES:
            raise ValueError(f"model_type {family} is not known here")
        found = tuple(_deepseek_v4(text) if family == "deepseek_v4" else _layers(text, serving))
        return align_states(found, serving, latent="kv_lora_rank" in text)


def align_states(kept: tuple[KeptLayers, ...], serving: CacheFlags, *, latent: bool = False) -> tuple[KeptLayers, ...]:
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

    def aligned(one: KeptLayers) -> KeptLayers:
        if one.kind == "state":
            return replace(one, page=block * token)
        return replace(one, block=block, page=one.page * block // one.block) if one.kind == "all" else one

    return tuple(map(aligned, kept))


def _layers(text: Mapping[str, Any], serving: CacheFlags) -> Iterator[KeptLayers]:
    kinds = layer_kinds(text)
    if unknown := set(kinds) - {"all", "window", "state"}:
        raise ValueError(f"layers of type {', '.join(sorted(unknown))}")
    shapes = Counter((kind, *heads_of(text, at)) for at, kind in enumerate(kinds) if kind != "state")
    drafting = bool(text.get("mtp_num_hidden_layers") or text.get("num_nextn_predict_layers"))
    width, latent = value_width(text, serving), bool(text.get("kv_lora_rank"))
    if not latent and not (text.get("num_key_value_heads") or text.get("num_attention_heads")):
        raise ValueError("no num_key_value_heads and no num_attention_heads")
    if not latent and any(size < 1 for _, _, size in shapes):
        raise ValueError("no head_dim")
    if latent and "window" in kinds:
        raise ValueError("latent attention with a window")
    for (kind, heads, size), layers in shapes.items():
        layers += 1 if kind == "all" and drafting and serving.drafted else 0  # the drafter's own
        if latent:
            yield from _latent(text, serving, layers, width)
            break
        page = serving.block * max(1, heads // serving.tp) * 2 * size * width  # a head is never split
        yield KeptLayers(kind, layers, serving.block, page, int(text["sliding_window"]) if kind == "window" else 0)
        if kind == "all" and text.get("indexer_compress_ratio"):
            yield from _compressed_keys(text, serving, layers)
    if states := kinds.count("state"):
        yield KeptLayers("state", states, 1, _state(text, serving))
    if text.get("ple_layer_ids"):  # Qwen's n-gram layers keep the input of a short convolution
        steps = (text["ple_conv_kernel_size"] - 1) * text["ngram_size"] + serving.drafted
        page = text["hidden_size"] * text["hc_count"] * steps * 2
        yield KeptLayers("state", len(text["ple_layer_ids"]), 1, page, copied=True)


KINDS: Mapping[str, Kind] = {
    "full_attention": "all",
    "attention": "all",
    "indexed_attention": "all",
    "qwen_sparse_attention": "all",
    "sliding_attention": "window",
    "linear_attention": "state",
}
"""By the names that config.json gives types of layers."""
NEMOTRON: Mapping[str, Kind] = {"M": "state", "*": "all"}  # - and E keep nothing


def layer_kinds(text: Mapping[str, Any]) -> list[Any]:
    """The kind of each layer that keeps something; a name that is not known stays."""
    if pattern := text.get("hybrid_override_pattern"):
        return [NEMOTRON.get(letter, letter) for letter in str(pattern) if letter not in "-E"]
    if text.get("num_hidden_layers") is None:
        raise ValueError("num_hidden_layers is missing")
    count, types = int(text["num_hidden_layers"]), text.get("layer_types")
    if not types and (every := text.get("full_attention_interval")):
        types = ["full_attention" if at % every == every - 1 else "linear_attention" for at in range(count)]
    if not types and text.get("sliding_window") and text.get("use_sliding_window", True):
        types = ["sliding_attention"] * count
    types = list(types or ["full_attention"] * count)
    shared = int(text.get("num_kv_shared_layers") or 0)  # Gemma: the last ones read what an earlier one keeps
    return [KINDS.get(str(name), str(name)) for name in types[: len(types) - shared]]


def heads_of(text: Mapping[str, Any], layer: int) -> tuple[int, int]:
    """Key-value heads of a layer and the size of one. Gemma's full-attention layers have their own."""
    heads = text.get("num_key_value_heads") or text.get("num_attention_heads") or 1
    size = text.get("head_dim") or (text.get("hidden_size") or 0) // (text.get("num_attention_heads") or 1)
    if is_full(text, layer):
        heads = (text.get("attention_k_eq_v", True) and text.get("num_global_key_value_heads")) or heads
        size = text.get("global_head_dim") or size
    own = (text.get("per_layer_config") or {}).get(str(layer)) or {}
    return int(own.get("num_key_value_heads") or heads), int(own.get("head_dim") or size)


def position_tables(config: Mapping[str, Any]) -> int:
    """Bytes of the cosines and sines that vLLM computes for each kind of rotary embedding (`cos_sin_cache`): a BF16
    row for each position, as wide as the part of a head that turns; each rank has all of them."""
    text = text_of(config)
    rope, types = text.get("rope_parameters") or text.get("rope_scaling") or {}, text.get("layer_types") or ()
    sizes: dict[str, int] = {}
    for layer, kind in enumerate(layer_kinds(text)):
        if kind != "state":
            name = str(types[layer]) if layer < len(types) else ""
            own = rope[name] if isinstance(rope.get(name), Mapping) else rope
            part = own.get("partial_rotary_factor") or text.get("partial_rotary_factor") or 1
            size = text.get("qk_rope_head_dim", heads_of(text, layer)[1])
            sizes[name] = int(size * (1 if own.get("rope_type") == "proportional" else part))
    return int(text.get("max_position_embeddings") or 0) * sum(sizes.values()) * 2


def is_full(text: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer is named as one of full attention."""
    types = text.get("layer_types") or ()
    return layer < len(types) and types[layer] == "full_attention"


def value_width(text: Mapping[str, Any], serving: CacheFlags) -> int:
    """Bytes of one value of the cache; auto is the model's own type, FP32 weights served as BF16.

    Raises UsageError for a flag's type that is not counted here, ValueError for one of config.json.
    """
    for flag, given in (("kv-cache-dtype", serving.cache_dtype), ("dtype", serving.dtype)):
        one_byte = flag == "kv-cache-dtype" and given.startswith("fp8") and "per_token" not in given
        if given not in _WIDTHS and not one_byte:
            raise UsageError(f"{flag} {given} is not counted here", code="model-config-unknown")
    named = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if named not in _WIDTHS:
        raise ValueError(f"dtype: expected one of float32, bfloat16, float16, found {named}")
    if serving.cache_dtype not in _WIDTHS:
        return 1
    return _WIDTHS[serving.cache_dtype] or _WIDTHS[serving.dtype] or 2


def _latent(text: Mapping[str, Any], serving: CacheFlags, layers: int, width: int) -> Iterator[KeptLayers]:
    """Multi-head latent attention (MLAAttentionSpec): one vector a token, not divided by TP; with an indexer, FP8 is
    packed with its scales (`fp8_ds_mla`) and a key of the indexer is kept beside it."""
    sparse = text.get("index_head_dim")
    token = (text["kv_lora_rank"] + text.get("qk_rope_head_dim", 0)) * width
    if sparse and width == 1:
        token = 656
    yield KeptLayers("all", layers, serving.block, serving.block * token)
    if sparse:
        pool = int(text.get("index_kpool") or 1)
        yield KeptLayers("all", layers, serving.block, serving.block // pool * (text["index_head_dim"] + 4))
        if pool > 1:  # Glm5NextTailCache: raw keys and gate scores of the pool that is not complete
            ring = pool * (1 << max(0, math.ceil((pool + serving.drafted) / pool) - 1).bit_length())
            yield KeptLayers("ring", layers, ring, ring * 2 * text["index_head_dim"] * 2)


def _compressed_keys(text: Mapping[str, Any], serving: CacheFlags, layers: int) -> Iterator[KeptLayers]:
    """Qwen's sparse attention: a BF16 key for each group of tokens, and a ring of the open group's keys and positions
    (QSACompressedKeyCache, QSAKeyStateCache)."""
    size, group = int(text["indexer_head_dim"]), int(text["indexer_compress_ratio"])
    yield KeptLayers("all", layers, serving.block, serving.block // group * size * 2)
    ring = group * math.ceil((group + serving.drafted) / group)
    yield KeptLayers("ring", layers, ring, ring * (math.ceil(size / 4) * 4 + 12) * 2)


def _state(text: Mapping[str, Any], serving: CacheFlags) -> int:
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


def _deepseek_v4(text: Mapping[str, Any]) -> Iterator[KeptLayers]:
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

    yield KeptLayers("all", fours, block, page(block // 4 * 584))
    yield KeptLayers("all", fours, block, page(block // 4 * (index + 4)))
    yield KeptLayers("all", many, block, page(block // 128 * 584))
    yield KeptLayers("window", fours, 4, page(4 * 2 * 2 * size * 4), 8)
    yield KeptLayers("window", fours, 4, page(4 * 2 * 2 * index * 4), 8)
    yield KeptLayers("window", many, 8, page(8 * 2 * size * 4), 128)
    yield KeptLayers("window", fours + many + plain, 64, page(64 * 584), int(text["sliding_window"]))
