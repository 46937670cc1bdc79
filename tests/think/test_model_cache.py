"""vLLM's cache to the token: logs of real starts, and formulae of its own issues (docs/fit.md has the table)."""

from __future__ import annotations

from typing import Any

import pytest
from config_tools import refusal
from loops import each

from cluster.model.cache import Cache, cache_of
from cluster.model.fit import context_of
from cluster.model.layers import CacheFlags, KeptLayers, cache_dtype_of, kept_layers

GIB = 1 << 30
GEMMA = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 60,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "num_global_key_value_heads": 4,
    "global_head_dim": 512,
    "sliding_window": 1024,
    "hidden_size": 5376,
}
MIXTURE = GEMMA | {
    "num_hidden_layers": 30,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
}
DEEPSEEK = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 43,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4],
    "head_dim": 512,
    "index_head_dim": 128,
    "sliding_window": 128,
}
GLM = {
    "model_type": "glm5_next_text",
    "num_hidden_layers": 45,
    "layer_types": ["indexed_attention" if at % 4 == 3 else "linear_attention" for at in range(45)],
    "num_attention_heads": 64,
    "hidden_size": 4096,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 0,
    "index_head_dim": 128,
    "index_kpool": 4,
    "linear_num_heads": 64,
    "linear_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
QWEN = {
    "model_type": "qwen4_exp_text",
    "num_hidden_layers": 48,
    "layer_types": ["qwen_sparse_attention" if at % 4 == 3 else "linear_attention" for at in range(48)],
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 2560,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "indexer_head_dim": 128,
    "indexer_compress_ratio": 4,
    "ple_layer_ids": [1],
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "hc_count": 4,
    "mtp_num_hidden_layers": 1,
}
DFLASH = KeptLayers("window", 5, 64, 64 * 2 * 4 * 128 * 2, 2048)
"""A drafter of five layers of its own with a window, as GLM's DFlash has it."""


def cache(config: dict[str, Any], *more: KeptLayers, **serving: Any) -> Cache:
    given = CacheFlags(**serving)
    return cache_of((*kept_layers(config, given), *more), given)


@each(
    "tp, gib, blocks, tokens",
    [
        (1, 86.5, 70_849, 593_906),  # eager, on an H200
        (1, 85.1, 69_686, 584_157),  # compiled; the log of another start said 584,165
        (2, 102.2, 167_424, 1_403_457),
        (2, 101.4, 166_065, 1_392_057),
    ],
)
def test_gemma_31b_on_a_real_gpu(tp: int, gib: float, blocks: int, tokens: int) -> None:
    """vLLM 0.24, FP8 cache, 32,768 tokens a request. The log rounds to 0.1 GiB, so the blocks are searched."""
    one = cache(GEMMA, tp=tp, cache_dtype="fp8", in_flight=1)
    assert one.blocks(int(gib * GIB)) == pytest.approx(blocks, rel=0.001)
    around = {one.tokens(at * one.block_bytes, 32768) for at in range(blocks - 20, blocks + 20)}
    assert min(abs(found - tokens) for found in around) <= 4


@each("in_flight, gib", [(1, 45.79), (2, 70.79)])
def test_two_batches_in_flight_cost_a_gemma_25_gib(in_flight: int, gib: float) -> None:
    """vllm#49878: what one request of 262,144 tokens takes of 0.25.1 and of 0.26."""
    one = cache(GEMMA, batched_tokens=32768, in_flight=in_flight)
    assert one.blocks_a_request(262144) * one.block_bytes / GIB == pytest.approx(gib, abs=0.005)


def test_the_log_of_april_counted_by_groups() -> None:
    """26B NVFP4 on a Spark, vLLM 0.19: 81.8 GiB of cache said 714,768 tokens."""
    assert cache(MIXTURE, cache_dtype="fp8").tokens_by_group(int(81.8 * GIB)) == pytest.approx(714_768, rel=0.0005)


@each("batched, tokens", [(8192, 1_146_448), (4096, 1_658_579), (2048, 2_135_571), (1024, 2_494_230)])
def test_deepseek_v4(batched: int, tokens: int) -> None:
    """11 GiB at TP=2; the first is an owner's log. Each request of a million tokens takes 10,778 blocks of it."""
    one = cache(DEEPSEEK, tp=2, cache_dtype="fp8", batched_tokens=batched)
    assert one.block_bytes == 1_002_240
    assert one.tokens(11 * GIB, 1_048_576) == tokens
    assert batched != 8192 or one.blocks_a_request(1_048_576) == 10_778


@each(
    "length, batched, blocks, tokens",
    [
        (900_000, 1024, 690, 1_754_237),
        (1_000_000, 1024, 638, 1_670_157),
        (1_000_000, 7168, 642, 1_118_466),
        (1_000_000, 7168, 607, 1_057_491),
    ],
)
def test_glm_with_a_drafter(length: int, batched: int, blocks: int, tokens: int) -> None:
    """Four logs of two Sparks: linear layers, latent attention with pooled keys, seven drafted tokens."""
    one = cache(GLM, DFLASH, tp=2, cache_dtype="fp8", drafted=7, batched_tokens=batched, block=64)
    assert one.block_bytes == 27_163_136
    assert one.tokens(blocks * one.block_bytes, length) == tokens


@each("dtype, blocks, tokens", [("auto", 1504, 2_131_159), ("fp8", 1435, 3_652_200)])
def test_qwen_with_compressed_keys(dtype: str, blocks: int, tokens: int) -> None:
    """Two logs of two Sparks: gated delta net, sparse attention, an n-gram layer, three drafted tokens."""
    one = cache(QWEN, tp=2, cache_dtype=dtype, drafted=3)
    assert one.tokens(blocks * one.block_bytes, 262_144) == tokens


def test_latent_attention_is_a_copy_on_each_rank_unless_the_context_is_split() -> None:
    flat = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 10,
        "num_attention_heads": 8,
        "hidden_size": 64,
        "kv_lora_rank": 512,
    }
    flat["qk_rope_head_dim"] = 64
    one, two = (cache(flat, tp=tp, block=64) for tp in (1, 2))
    assert one.block_bytes == two.block_bytes == 10 * 64 * 576 * 2
    split = cache(flat, tp=2, block=64, context_parallel=2)
    assert split.tokens(GIB, 65536) == 2 * one.tokens(GIB, 65536)


def test_a_head_is_never_split() -> None:
    two = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
    }
    assert [cache(two, tp=tp).block_bytes // 16 for tp in (1, 2, 4)] == [2 * 64 * 4, 64 * 4, 64 * 4]


def test_the_longest_is_one_token_less_than_what_does_not_fit() -> None:
    one = cache(GEMMA, tp=2, cache_dtype="fp8")
    longest = one.longest(GIB * 20, requests=2)
    assert one.needed(longest, 2) <= 20 * GIB < one.needed(longest + 1, 2)
    assert one.longest(one.block_bytes) == 0, "the one block that vLLM keeps leaves none"
    assert one.longest(GIB * 20, limit=1000) == 1000


@each(
    "config",
    [
        {"num_hidden_layers": 2, "layer_types": ["chunked_attention", "full_attention"]},
        {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
        {"hybrid_override_pattern": "MX*", "num_hidden_layers": 3},
        {"model_type": "deepseek_v41_text", "compress_ratios": [4]},
        {"model_type": "deepseek_v4", "compress_ratios": [16], "head_dim": 512, "index_head_dim": 128},
        {"num_hidden_layers": 2, "torch_dtype": "float8"},
        {"num_hidden_layers": 2, "model_type": "something_new"},
        {"num_hidden_layers": 2, "model_type": None},
        {},
    ],
)
def test_what_is_not_known_is_refused(config: dict[str, Any]) -> None:
    heads = {"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    assert refusal(kept_layers, heads | config if config else {}, CacheFlags()).code == "model-config-unknown"


@each("dtype", ["nvfp4", "int4_per_token_head", "fp8_per_token_head", "turboquant_4"])
def test_a_cache_dtype_with_a_layout_of_its_own_is_refused(dtype: str) -> None:
    assert refusal(kept_layers, GEMMA, CacheFlags(cache_dtype=dtype)).code == "model-config-unknown"


@each(
    "quantization, dtype",
    [
        ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, "auto"),
        ({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}, "auto"),
        ({"quant_method": "gptq", "bits": 4}, "auto"),
        ("no mapping", "auto"),
    ],
)
def test_a_checkpoint_asks_for_a_cache_dtype(quantization: Any, dtype: str) -> None:
    assert cache_dtype_of({"quantization_config": quantization}) == dtype
    assert cache_dtype_of({"text_config": {"quantization_config": quantization}}) == dtype


SIX = ["sliding_attention"] * 5 + ["full_attention"]
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}


@each(
    "published, meant",
    [
        ({"model_type": "gemma3_text"}, {"layer_types": SIX * 2, **HEADS}),
        ({"model_type": "gemma4_text"}, {"layer_types": SIX * 2, **HEADS, "global_head_dim": 512}),
        ({"model_type": "gemma2"}, {"layer_types": ["sliding_attention", "full_attention"] * 6, **HEADS}),
        ({"model_type": "gpt_oss", **HEADS}, {"layer_types": ["sliding_attention", "full_attention"] * 6}),
        ({"model_type": "cohere2", **HEADS}, {"layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 3}),
        (
            {"model_type": "exaone4", "sliding_window_pattern": "LLLG", **HEADS},
            {"layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 3},
        ),
        ({"model_type": "qwen2", **HEADS}, {"layer_types": ["full_attention"] * 12}),
    ],
)
def test_what_config_json_leaves_out_is_what_its_class_says(published: dict[str, Any], meant: dict[str, Any]) -> None:
    size = {"num_hidden_layers": 12, "hidden_size": 2560, "sliding_window": 1024}
    config = {"model_type": published["model_type"], "text_config": size | published}
    assert cache(config) == cache({"text_config": size | published | meant})


@each(
    "config, length",
    [
        ({"model_type": "gemma3"}, 131_072),
        ({"model_type": "gemma3", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 131_072),
        ({"model_type": "llama"}, None),
        ({"model_type": "llama", "max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, 4096),
        ({"n_positions": 1024}, 1024),
    ],
)
def test_the_longest_context_is_what_vllm_derives(config: dict[str, Any], length: int | None) -> None:
    assert context_of(config) == length


@each(
    "key, value, said",
    [
        ("max_position_embeddings", -5, "max_position_embeddings: expected a whole number of 1 or more, found -5"),
        ("num_hidden_layers", -1, "num_hidden_layers: expected a whole number of 1 or more, found -1"),
        ("num_hidden_layers", 10**9, "num_hidden_layers: expected at most 10000, found 1000000000"),
        ("num_attention_heads", "eight", "num_attention_heads: expected a whole number of 1 or more, found 'eight'"),
        ("num_experts", "eight", "num_experts: expected a whole number of 0 or more, found 'eight'"),
        (
            "sliding_window_pattern",
            "every 6",
            "sliding_window_pattern: expected a whole number of 1 or more, or letters",
        ),
        ("layer_types", {"0": "full_attention"}, "layer_types: expected a list, found"),
        ("rope_scaling", "yarn", "rope_scaling: expected a mapping, found 'yarn'"),
        ("torch_dtype", ["bf16"], "dtype: expected one of float32, bfloat16, float16, found ['bf16']"),
        ("num_hidden_layers", None, "num_hidden_layers is missing"),
    ],
)
def test_a_config_json_that_is_none_names_the_key(key: str, value: Any, said: str) -> None:
    good = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": 64}
    assert said in refusal(kept_layers, good | {key: value}, CacheFlags()).what
