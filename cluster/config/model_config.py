"""The attention of a model from its config.json, as Hugging Face writes it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.config.recipe import AttentionLayers
from cluster.config.written import read_text
from cluster.errors import UsageError

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


def read_attention(path: Path) -> tuple[AttentionLayers, ...]:
    """Layers by shape. Raises UsageError: not a config.json, or a kind of attention that is not counted here."""
    try:
        config = json.loads(read_text(path))
        text = config.get("text_config") or config
        return tuple(_shapes(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: is not a config.json whose attention is known here: {error!r}") from None


def _shapes(text: Mapping[str, Any]) -> list[AttentionLayers]:
    """Linear layers keep a state of fixed size, which is left out."""
    if "kv_lora_rank" in text:
        raise ValueError("latent attention (kv_lora_rank) keeps something else than heads")
    kinds = Counter(text.get("layer_types") or [FULL] * text["num_hidden_layers"])
    unknown = kinds.keys() - {FULL, SLIDING, LINEAR}
    if unknown:
        raise ValueError(f"layers of type {', '.join(sorted(unknown))}")
    heads = text.get("num_key_value_heads") or text["num_attention_heads"]
    size = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    shapes = []
    if kinds[SLIDING]:
        shapes.append(
            AttentionLayers(layers=kinds[SLIDING], kv_heads=heads, head_dim=size, window=text["sliding_window"])
        )
    if kinds[FULL]:
        own_heads, own_size = text.get("num_global_key_value_heads") or heads, text.get("global_head_dim") or size
        shapes.append(AttentionLayers(layers=kinds[FULL], kv_heads=own_heads, head_dim=own_size))
    return shapes
