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
from typing import Any

from cluster.model.checkpoint import Tensor
from cluster.model.layers import heads_of, is_full, position_tables, text_of

TOWER = re.compile(r"(^|\.)(vision_tower|visual|vision_model|vision_embed\w*|audio_tower|embed_vision|embed_audio)\.")
DRAFTER = re.compile(r"(^|\.)(mtp|mtp_layers|draft|eagle)\.")
VOCABULARY = re.compile(r"(^|\.)(embed_tokens|lm_head|word_embeddings|wte|output|embed|head|embed_tokens_per_layer)$")
HEAD = re.compile(r"(^|\.)(lm_head|output|head)$")
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
    """How vLLM is told to place the weights; `made`: bytes of a weight that vLLM quantises while loading (fp8: 1)."""

    tp: int = 1
    pp: int = 1
    drafted: bool = False
    made: float | None = None
    experts_whole: bool = False  # enable-expert-parallel
    tower_copied: bool = False  # mm-encoder-tp-mode data
    text_only: bool = False  # limit-mm-per-prompt of 0 everywhere: no tower is built


def on_ranks(tensors: Iterable[Tensor], config: Mapping[str, Any], sharding: Sharding) -> tuple[RankWeights, ...]:
    """What one tensor-parallel rank of each pipeline stage holds."""
    text = text_of(config)
    count = int(text.get("num_hidden_layers") or 0)
    bounds = stages(count, sharding.pp)
    ranks = tuple(RankWeights() for _ in range(sharding.pp))
    names = {tensor.name for tensor in tensors}
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    tied = not any(HEAD.search(_module(name)[0]) for name in names) if tied is None else bool(tied)
    in_files: dict[int, float] = defaultdict(float)
    for tensor in tensors:
        module, part = _module(tensor.name)
        found = _LAYER.search(f".{module}")
        tower = TOWER.search(f".{tensor.name}")
        layer = int(found[1]) if found and not tower else None
        drafter = bool(DRAFTER.search(f".{tensor.name}")) or (layer is not None and 0 < count <= layer)
        if (drafter and not sharding.drafted) or (tower and sharding.text_only):
            continue
        head = HEAD.search(module) is not None
        if head and tied:
            continue
        size, known = _size(tensor, module, part, text, sharding, bool(tower), layer)
        if layer is not None and module.endswith(".k_proj") and _keys_are_values(text, layer):
            size *= 2
        where = _where(layer if not drafter else None, bounds, drafter, head, bool(tower), tied)
        name = "drafter" if drafter else "tower" if tower else "head" if head else "embeddings"
        if layer is not None and not drafter:
            name = "experts" if EXPERTS.search(f".{module}") else "layers"
        for stage in where:
            ranks[stage].parts[name] += size
            ranks[stage].unknown += 0.0 if known else size
        if layer is not None and not drafter:
            in_files[layer] += tensor.bytes / sharding.tp
    for rank in ranks:
        if tables := position_tables(config) if count else 0:
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


def _where(
    layer: int | None, bounds: Sequence[range], drafter: bool, head: bool, tower: bool, tied: bool
) -> Sequence[int]:
    last = len(bounds) - 1
    if layer is not None:
        return [at for at, stage in enumerate(bounds) if layer in stage]
    if tower:
        return range(len(bounds))  # vLLM builds it on every stage
    if drafter or head:
        return [last]
    return sorted({0, last}) if tied else [0]


def _module(name: str) -> tuple[str, str]:
    found = _PART.search(name)
    return (name[: found.start()], found[1]) if found else (name, "")


def _size(
    tensor: Tensor, module: str, part: str, text: Mapping[str, Any], sharding: Sharding, tower: bool, layer: int | None
) -> tuple[float, bool]:
    """Bytes of one tensor on a rank, and whether a rule knows it."""
    tp, count = sharding.tp, math.prod(tensor.shape)
    size = float(tensor.bytes)
    if tensor.dtype == "F32" and not _EXACT.search(tensor.name):
        size = count * 2.0
    elif FP32.search(module):
        size = count * 4.0
    dotted = f".{module}"
    if VOCABULARY.search(module) and len(tensor.shape) == 2 and not tower:
        padded = math.ceil(tensor.shape[0] / 64) * 64
        return size / tensor.shape[0] * padded / tp, True
    copied, split = COPIED.search(dotted), SPLIT.search(dotted) or HEADS.search(dotted) or EXPERTS.search(dotted)
    is_matrix = len(tensor.shape) >= 2 and part in ("weight", "") and tensor.dtype in ("BF16", "F16", "F32")
    linear = (
        is_matrix and not tower and (split or re.search(r"_proj$|per_layer_input_gate|per_layer_projection", module))
    )
    if sharding.made and linear and not re.search(r"conv1d|router|norm|\.gate$", dotted):
        size = count * sharding.made
    if count <= 1 or (copied and not EXPERTS.search(dotted)):
        return size, True
    if tower and (sharding.tower_copied or "tower" in dotted or "embed_" in dotted):
        return size, True
    if part == "bias" and BY_ROWS.search(dotted):
        return size, True
    if HEADS.search(dotted) and tensor.shape and layer is not None:
        heads, _ = heads_of(text, layer)
        return size * max(1, heads // tp) / heads, True
    return (size / tp if split or _divisible(tensor, tp) else size), bool(split) or tower


def _divisible(tensor: Tensor, tp: int) -> bool:
    return len(tensor.shape) >= 2 and any(side % tp == 0 for side in tensor.shape)


def _keys_are_values(text: Mapping[str, Any], layer: int) -> bool:
    """Gemma's full-attention layers whose keys are their values: the files have them once, vLLM twice."""
    return bool(text.get("attention_k_eq_v")) and is_full(text, layer)
