"""Bytes of weights on each rank, against what vLLM itself held of toys (tests/samples/held), and where they lie."""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
from loops import each
from test_model_cache import GEMMA

from cluster.config.recipe import Recipe
from cluster.model.cache import cache_of
from cluster.model.checkpoint import Checkpoint, Tensor
from cluster.model.fit import Asked, KnownModel, ceiling_of, weights_on_ranks
from cluster.model.layers import CacheFlags, kept_layers
from cluster.model.weights import RankWeights, Sharding, on_ranks, stages

HELD = Path(__file__).parents[1] / "samples" / "held"
TOYS = sorted(path.stem for path in HELD.glob("*.json"))


def toy(name: str) -> Any:
    found = json.loads((HELD / f"{name}.json").read_text())
    found["tensors"] = [Tensor(one[0], one[1], tuple(one[2]), one[3]) for one in found["tensors"]]
    return found


def test_all_kinds_were_recorded() -> None:
    """Dense with embeddings a layer, dense with a tower, a mixture, a mixture with linear attention."""
    assert TOYS == ["tiny-gemma-4", "tiny-gemma-4-dense", "tiny-gemma-4-moe", "tiny-qwen-3.5-moe"]


@each("name", TOYS)
def test_weights_are_those_of_vllm_to_the_byte(name: str) -> None:
    found = toy(name)
    for tp, run in found["runs"].items():
        [rank] = on_ranks(found["tensors"], found["config"], Sharding(int(tp)))
        tables = rank.parts.pop("position tables", 0)
        assert [rank.total] * int(tp) == run["weights"], f"TP={tp}"
        shapes = (re.fullmatch(r"cos_sin_cache \[(\d+), (\d+)\]", name) for name in run["buffers"])
        assert tables == sum(int(found[1]) * int(found[2]) * 2 for found in shapes if found), f"TP={tp}"
        assert rank.unknown == 0


@each("name", TOYS)
def test_the_cache_is_that_of_vllm_to_the_token(name: str) -> None:
    found = toy(name)
    for tp, run in found["runs"].items():
        named = {key: run[key] for key in ("block", "in_flight")}
        serving = CacheFlags(int(tp), batched_tokens=run["batched"], aligned_states=run["aligned"], **named)
        cache = cache_of(kept_layers(found["config"], serving), serving)
        assert (cache.blocks(1 << 30), cache.tokens(1 << 30, run["length"])) == (run["blocks"], run["tokens"]), tp


TEXT = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8, "hidden_size": 64}


def held(name: str, shape: tuple[int, ...], tp: int = 2, dtype: str = "BF16", **sharding: Any) -> float:
    """Bytes of one tensor on a rank; a byte of FP8 and U8, two of BF16, four of F32."""
    size = {"BF16": 2, "F32": 4}.get(dtype, 1)
    for side in shape:
        size *= side
    ranks = on_ranks(
        [Tensor(name, dtype, shape, size)], TEXT | {"tie_word_embeddings": False}, Sharding(tp, **sharding)
    )
    return ranks[0].total


@each(
    "name, shape, part",
    [
        ("model.layers.0.self_attn.q_proj.weight", (64, 64), 1 / 2),
        ("model.layers.0.self_attn.k_proj.weight", (16, 64), 1 / 2),
        ("model.layers.0.self_attn.o_proj.weight", (64, 64), 1 / 2),
        ("model.layers.0.self_attn.o_proj.bias", (64,), 1),
        ("model.layers.0.self_attn.q_a_proj.weight", (64, 64), 1),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", (64, 64), 1),
        ("model.layers.0.self_attn.q_b_proj.weight", (64, 64), 1 / 2),
        ("model.layers.0.self_attn.indexer.wq_b.weight", (64, 64), 1),
        ("model.layers.0.mlp.gate.weight", (8, 64), 1),
        ("model.layers.0.mlp.experts.3.down_proj.weight", (64, 64), 1 / 2),
        ("model.layers.0.mlp.shared_expert_gate.weight", (1, 64), 1),
        ("model.layers.0.linear_attn.conv1d.weight", (64, 1, 4), 1 / 2),
        ("model.layers.0.linear_attn.A_log", (64,), 1 / 2),
        ("model.layers.0.input_layernorm.weight", (64,), 1),
        ("model.visual.blocks.0.attn.qkv.weight", (64, 64), 1 / 2),
        ("model.visual.blocks.0.norm1.weight", (64,), 1),
        ("model.vision_tower.encoder.layers.0.mlp.up_proj.linear.weight", (64, 64), 1),
        ("lm_head.weight", (100, 64), 1.28 / 2),  # rows are filled up to a multiple of 64
    ],
)
def test_what_is_split_and_what_is_copied(name: str, shape: tuple[int, ...], part: float) -> None:
    assert held(name, shape) == pytest.approx(part * held(name, shape, tp=1) * (1 if part != 0.64 else 1 / 1.28))


def test_a_head_is_copied_when_there_are_fewer_than_ranks() -> None:
    key = ("model.layers.0.self_attn.k_proj.weight", (16, 64))
    assert [held(*key, tp=tp) for tp in (1, 2, 4)] == [2048, 1024, 1024]


def test_types() -> None:
    up = "model.layers.0.mlp.up_proj"
    assert held(f"{up}.weight", (64, 64), dtype="U8") == 64 * 64 / 2, "4 bits, two to an element"
    assert held(f"{up}.weight_scale", (64, 4), dtype="F8_E4M3") == 64 * 4 / 2, "scales follow their weights"
    assert held(f"{up}.weight", (64, 64), dtype="F32") == 64 * 64, "vLLM holds BF16"
    assert held(f"{up}.weight", (64, 64), made=1.0) == 64 * 64 / 2, "FP8 made while loading"
    assert held("model.embed_tokens.weight", (64, 64), made=1.0) == 64 * 64, "embeddings stay in BF16"


def parts(*names: str, **sharding: Any) -> tuple[RankWeights, ...]:
    tensors = [Tensor(name, "BF16", (64, 64), 64 * 64 * 2) for name in names]
    return on_ranks(tensors, TEXT, Sharding(**sharding))


def test_pipeline_stages() -> None:
    """Layers by stage; embeddings on the first, the head on the last, tied ones on both; a tower on every."""
    layers = [f"model.layers.{at}.mlp.up_proj.weight" for at in range(4)]
    first, last = parts("model.embed_tokens.weight", "lm_head.weight", "visual.merger.mlp.weight", *layers, pp=2)
    assert set(first.parts) == {"embeddings", "layers", "tower"}
    assert set(last.parts) == {"head", "layers", "tower"}
    first, last = parts("model.embed_tokens.weight", *layers, pp=2)
    assert first.parts == last.parts, "no head in the files: it is the embeddings"
    assert [len(stage) for stage in stages(10, 4)] == [2, 3, 3, 2]


def test_a_drafter_in_the_same_files_counts_when_it_is_used() -> None:
    names = (
        "mtp.layers.0.mlp.up_proj.weight",
        "model.layers.4.mlp.up_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    )
    assert set(parts(*names)[0].parts) == {"layers"}
    used = parts(*names, drafted=True)[0].parts
    assert used["drafter"] == 2 * used["layers"]


def test_no_tower_without_pictures() -> None:
    assert parts("visual.merger.mlp.weight", text_only=True)[0].total == 0


def test_a_name_that_no_rule_knows_is_counted_and_said() -> None:
    [rank] = parts("model.layers.0.some_new_thing.weight", tp=2)
    assert rank.unknown == rank.total == 64 * 64


def test_gemma_31b_made_fp8_while_loading() -> None:
    """Its text model in shape: an H200's log of vLLM 0.24 said 30.64 GiB with the allocator's remainders."""
    hidden, inner = 5376, 21504
    config = GEMMA | {"attention_k_eq_v": True, "tie_word_embeddings": True, "max_position_embeddings": 262144}
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (262144, hidden), "norm": (hidden,)}
    for at in range(60):
        full = at % 6 == 5
        size, heads = (512, 4) if full else (256, 16)
        attention = {"q_proj": (32 * size, hidden), "k_proj": (heads * size, hidden), "o_proj": (hidden, 32 * size)}
        attention |= {} if full else {"v_proj": (heads * size, hidden)}
        mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
        shapes |= {f"layers.{at}.self_attn.{name}": shape for name, shape in attention.items()}
        shapes |= {f"layers.{at}.mlp.{name}": shape for name, shape in mlp.items()}
        shapes |= {f"layers.{at}.norm_{number}": (hidden,) for number in range(4)}
    tensors = [Tensor(f"model.{name}.weight", "BF16", shape, 2 * prod(shape)) for name, shape in shapes.items()]
    [rank] = on_ranks(tensors, config, Sharding(made=1.0))
    assert rank.total / (1 << 30) == pytest.approx(30.38, abs=0.01)
    assert rank.total / (1 << 30) == pytest.approx(30.64, rel=0.02)


def test_stages_with_a_head_of_their_own_read_no_embeddings() -> None:
    """The head is on the last stage; the first has only the embeddings, of which a token reads one row."""
    config = {"model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 64}

    def read(pp: int, tied: bool) -> float | None:
        shapes = {f"model.layers.{at}.mlp.up_proj.weight": (640, 640) for at in range(4)}
        shapes |= {"model.embed_tokens.weight": (6400, 640)} | ({} if tied else {"lm_head.weight": (6400, 640)})
        tensors = tuple(Tensor(name, "BF16", shape, shape[0] * shape[1] * 2) for name, shape in shapes.items())
        model = KnownModel(Checkpoint("a", "", config, tensors, 1))
        recipe, asked = Recipe(model="a/b", image="x:1"), Asked(pp=pp)
        return ceiling_of(recipe, model, asked, weights_on_ranks(recipe, model, asked))[0]

    for tied in (False, True):
        assert read(2, tied) == pytest.approx(read(1, tied))
