"""Bytes of a checkpoint's weights on each rank: what vLLM splits over tensor-parallel ranks, and what it copies.

From the names, types and shapes of its tensors (`checkpoint.Tensor`); the rules are those of vLLM 0.32's layers
(model_executor/layers/linear.py, vocab_parallel_embedding.py, fused_moe, distributed/utils.py `get_pp_indices`).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from cluster.model.checkpoint import Tensor
from cluster.model.layers import check, heads_of, is_full, position_tables, text_of

TOWER = re.compile(r"(^|\.)(vision_tower|visual|vision_model|vision_embed\w*|audio_tower|embed_vision|embed_audio)\.")
DRAFTER = re.compile(r"(^|\.)(mtp|mtp_layers|draft|eagle)\.")
VOCABULARY = re.compile(r"(^|\.)(embed_tokens|lm_head|word_embeddings|wte|output|embed|head|embed_tokens_per_layer)$")
HEAD = re.compile(r"(^|\.)(lm_head|output|head)$")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_PART = re.compile(
    r"\.(weight|weight_packed|weight_scale|weight_scale_inv|weight_scale_2|weight_global_scale|weight_shape|scale|bias|"
    r"qweight|qzeros|scales|g_idx|input_scale|input_global_scale|input_activations|k_scale|v_scale)$"
)
SPLIT = re.compile(
    r"\.(q_proj|qkv_proj|query_key_value|qkv|o_proj|out_proj|dense|gate_proj|up_proj|down_proj|gate_up_proj|q_b_proj|"
    r"kv_b_proj|wq_b|wo_a|wo_b|w[123]|fc[12]|linear_fc[12]|in_proj\w*|b_proj|f_b_proj|g_b_proj|conv1d|[qkv]_conv1d|"
    r"A_log|dt_bias|D|c_fc|c_proj|c_attn|ngram_embedding|per_layer_model_projection)$"
)
HEADS = re.compile(r"\.[kv]_proj$")
BY_ROWS = re.compile(r"\.(o_proj|out_proj|down_proj|dense|wo_b|w2|fc2|linear_fc2|c_proj|proj)$")  # whose bias is copied
EXPERTS = re.compile(r"\.experts(\.|$)")
COPIED = re.compile(
    r"norm|router|(\.|^)gate$|shared_expert_gate|q_a_proj|kv_a_proj|wq_a|\.wkv$|indexer|compressor|[fg]_a_proj|pos_emb|"
    r"position_emb|patch_emb|e_score_correction|layer_scalar|scale$|sinks|hyper_connection|\.hc_|per_layer_input_gate|"
    r"per_layer_projection|eh_proj|enorm|hnorm|embedding_projection|rotary|\.ape$|tid2eid|\.std_|ple\.kv_proj"
)
FP32 = re.compile(r"\.(A_log|e_score_correction_bias)$")  # whatever they are in the files
_EXACT = re.compile(r"scale|A_log|dt_bias|e_score_correction")
"""Parameters that keep their own type; the others take the model's (BF16) when they are FP32 in the files."""


@dataclass(slots=True)
class RankWeights:
    """Bytes of one rank by part. `unknown`: tensors that no rule names, counted as split when they can be."""

    parts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    unknown: float = 0.0
    largest_layer: float = 0.0  # the most that one decoder layer has in the files, split

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Sharding:
    """Where vLLM's flags place the weights; `made`: bytes of a weight that vLLM quantises while loading (fp8: 1)."""

    tp: int = 1
    pp: int = 1
    drafted: bool = False
    width: float = 2.0  # bytes of the type that the model is served in
    made: float | None = None
    tower_copied: bool = False  # mm-encoder-tp-mode data
    text_only: bool = False  # limit-mm-per-prompt of 0 everywhere: no tower is built


@dataclass(frozen=True, slots=True)
class NameRule:
    """What a tensor's name says. `how`: it is copied, split, split by key-value heads or by rows of a vocabulary; empty
    when no rule knows it. `linear`: vLLM may quantise it; `dtype_kept`: it does not take the model's type."""

    part: Literal["layers", "experts", "embeddings", "head", "tower", "drafter"]
    how: Literal["copied", "split", "heads", "vocabulary", ""]
    linear: bool
    dtype_kept: bool
    fp32: bool


@cache
def rule_of(name: str) -> NameRule:
    """The rule for a name whose numbers are all 0: a checkpoint has few of those."""
    found = _PART.search(name)
    module, suffix = (f".{name[: found.start()]}", found[1]) if found else (f".{name}", "")
    tower, experts = TOWER.search(module + "."), bool(EXPERTS.search(module))
    part: Any = "tower" if tower else "drafter" if DRAFTER.search(module) else "experts" if experts else "layers"
    if part == "layers" and not _LAYER.search(module):
        part = "head" if HEAD.search(module) else "embeddings"
    how: Any = ""
    if VOCABULARY.search(module) and not tower:
        how = "vocabulary"
    elif (
        (COPIED.search(module) and not experts)
        or (suffix == "bias" and BY_ROWS.search(module))
        or (tower and re.search(r"tower|embed_", module))
    ):
        how = "copied"
    elif HEADS.search(module) and not tower:
        how = "heads"
    elif tower or experts or SPLIT.search(module) or HEADS.search(module):
        how = "split"
    linear = suffix in ("weight", "") and not tower and not re.search(r"conv1d|router|norm|\.gate$", module)
    linear = linear and bool(how in ("split", "heads") or re.search(r"_proj$|per_layer_input_gate", module))
    return NameRule(part, how, linear, bool(_EXACT.search(name)), bool(FP32.search(module)))


def on_ranks(tensors: Iterable[Tensor], config: Mapping[str, Any], sharding: Sharding) -> tuple[RankWeights, ...]:
    """What one tensor-parallel rank of each pipeline stage holds."""
    text = text_of(config)
    check(text)
    count = int(text.get("num_hidden_layers") or 0)
    bounds = stages(count, sharding.pp)
    ranks = tuple(RankWeights() for _ in range(sharding.pp))
    found = [(tensor, rule_of(_NUMBER.sub("0", tensor.name))) for tensor in tensors]
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    tied = not any(rule.part == "head" for _, rule in found) if tied is None else bool(tied)
    in_files: dict[int, float] = defaultdict(float)
    for tensor, rule in found:
        numbered = _LAYER.search(f".{tensor.name}") if rule.part in ("layers", "experts") else None
        layer, part = int(numbered[1]) if numbered else None, str(rule.part)
        if layer is not None and 0 < count <= layer:
            layer, part = None, "drafter"
        unused = (part == "drafter" and not sharding.drafted) or (part == "tower" and sharding.text_only)
        if unused or (part == "head" and tied):
            continue
        size = _size(tensor, rule, text, sharding, layer)
        for stage in _where(layer, part, bounds, tied):
            ranks[stage].parts[part] += size
            ranks[stage].unknown += 0.0 if rule.how else size
        if layer is not None:
            in_files[layer] += tensor.bytes / sharding.tp
    tables = position_tables(config) if count else 0
    for rank in ranks:
        if tables:
            rank.parts["position tables"] = tables
        rank.largest_layer = max(in_files.values(), default=0.0)
    return ranks


def stages(layers: int, pp: int) -> list[range]:
    """Layers of each pipeline stage; what is left over goes to the stages before the last, from behind."""
    sizes = [layers // pp] * pp
    for at in range(2, layers % pp + 2):
        sizes[-at] += 1
    ends = [sum(sizes[: at + 1]) for at in range(pp)]
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _where(layer: int | None, part: str, bounds: Sequence[range], tied: bool) -> Sequence[int]:
    last = len(bounds) - 1
    if layer is not None:
        return [at for at, stage in enumerate(bounds) if layer in stage]
    if part == "tower":
        return range(len(bounds))  # vLLM builds it on every stage
    if part in ("drafter", "head"):
        return [last]
    return sorted({0, last}) if tied else [0]


def _size(tensor: Tensor, rule: NameRule, text: Mapping[str, Any], sharding: Sharding, layer: int | None) -> float:
    """Bytes of one tensor on a rank."""
    tp, count, size = sharding.tp, math.prod(tensor.shape), float(tensor.bytes)
    if rule.fp32:
        size = count * 4.0
    elif sharding.made and rule.linear and len(tensor.shape) >= 2 and tensor.dtype in ("BF16", "F16", "F32"):
        size = count * sharding.made
    elif tensor.dtype in ("BF16", "F16", "F32") and not rule.dtype_kept:
        size = count * sharding.width
    if rule.how == "vocabulary" and len(tensor.shape) == 2:
        return size / tensor.shape[0] * math.ceil(tensor.shape[0] / 64) * 64 / tp
    if count <= 1 or rule.how == "copied" or (rule.part == "tower" and sharding.tower_copied):
        return size
    if rule.how == "heads" and layer is not None:
        heads, _ = heads_of(text, layer)
        factor = 2 if text.get("attention_k_eq_v") and is_full(text, layer) else 1  # keys that are values: kept twice
        return size * factor * max(1, heads // tp) / heads
    divisible = len(tensor.shape) >= 2 and any(side % tp == 0 for side in tensor.shape)
    return size / tp if rule.how or divisible else size
