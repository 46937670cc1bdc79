# mypy: disable-error-code="import-not-found,import-untyped,misc,no-any-return,no-untyped-call,call-arg"
"""The toys by name: Gemma 4's shapes, made small. Each has what the real one has that vLLM treats apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quantised import to_fp8, to_int4
from words import MARKS, VOCABULARY, token

CONTEXT = 131072
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2 * CONTEXT,
    "dtype": "bfloat16",
}
"""What most of them share."""
# As in the real ones: two head sizes, full attention in each sixth layer, whose keys are its values.
TEXT = SMALL | {
    "vocab_size_per_layer_input": 0,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "global_head_dim": 128,
    "attention_k_eq_v": True,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": CONTEXT,
}
SMALLEST = TEXT | {
    "hidden_size": 256,
    "hidden_size_per_layer_input": 32,
    "intermediate_size": 512,
    "vocab_size_per_layer_input": VOCABULARY,
    "attention_k_eq_v": False,
    "max_position_embeddings": 32768,
}
"""Gemma 4 without pictures, with embeddings for each layer as the smallest ones have them."""
EXPERTS = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64}
# 144 is no multiple of 64, as 4304 is none: such a tower vLLM leaves in BF16 when it quantises while loading.
VISION = {
    "hidden_size": 64,
    "intermediate_size": 144,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "position_embedding_size": 1024,
    "default_output_length": 280,  # of vLLM; transformers does not know it
}
DRAFTER = {**TEXT, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_kv_shared_layers": 2}
DRAFTER["layer_types"] = ["sliding_attention", "full_attention"]
# Qwen 3.5's mixture without pictures: linear attention, full attention in each fourth layer, experts.
QWEN = SMALL | {
    "num_hidden_layers": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
# Plain attention with norms before its heads, and experts.
MINIMAX = SMALL | {"intermediate_size": 64, "num_hidden_layers": 2, "num_local_experts": 8, "num_experts_per_tok": 2}
MINIMAX_FOR_VLLM = {"rotary_dim": 32, "scoring_func": "softmax", "use_routing_bias": True}
"""Keys of config.json that vLLM reads and transformers leaves out. The real one's scores are sigmoids, which vLLM's CPU
build does not have."""
# Mamba, attention and dense layers. The real one's experts lack a gate: no CPU kernel.
NEMOTRON = SMALL | {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
    "intermediate_size": 128,
    "ssm_state_size": 64,
    "mamba_num_heads": 4,
    "mamba_head_dim": 64,
    "n_groups": 2,
    "chunk_size": 64,
}


def save(model: Any, files: Path) -> None:
    """Weights in BF16, and the configuration; an answer ends where a turn does."""
    import torch

    model.generation_config.eos_token_id = [token("<eos>"), token("<turn|>")]
    model.to(torch.bfloat16).save_pretrained(files)
    if not hasattr(model.config, "vision_config"):
        (files / "processor_config.json").unlink()


def made(files: Path, kind: str, values: dict[str, Any], form: str = "") -> None:
    """A model of a class of transformers (its name without ForCausalLM) with these values in its configuration."""
    import torch
    import transformers

    torch.manual_seed(4)
    config = getattr(transformers, f"{form or kind}Config")(**values)
    save(getattr(transformers, f"{kind}ForCausalLM")(config), files)


def with_vision(files: Path, **more: Any) -> None:
    """The class that the real ones are of, with a tower for pictures."""
    import torch
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration, Gemma4TextConfig, Gemma4VisionConfig

    torch.manual_seed(4)
    marks = {f"{name}_id": token(mark) for name, mark in MARKS.items()} | {"video_token_id": token("<|video|>")}
    marks["eoa_token_index"] = marks.pop("eoa_token_id")  # so Gemma's configuration names it
    text, vision = Gemma4TextConfig(**TEXT | more), Gemma4VisionConfig(**VISION)
    save(Gemma4ForConditionalGeneration(Gemma4Config(text_config=text, vision_config=vision, **marks)), files)


def mixture(files: Path) -> None:
    """Eight experts, two for a token. With a `gemma4_patched.py`, as the NVFP4 checkpoint has: vLLM's own file here."""
    with_vision(files, **EXPERTS)
    package = find_spec("vllm")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the engine has no vLLM")
    own = Path(package.submodule_search_locations[0], "model_executor/models/gemma4.py").read_text()
    (files / "gemma4_patched.py").write_text(f"{own}\n# vLLM's own file, from a toy's repository (cluster lab)\n")


def minimax(files: Path) -> None:
    ends = {"bos_token_id": token("<bos>"), "eos_token_id": token("<eos>")}
    made(files, "MiniMaxM2", MINIMAX | ends)
    config = json.loads((files / "config.json").read_text())
    (files / "config.json").write_text(json.dumps(config | MINIMAX_FOR_VLLM, indent=1))


def drafter(files: Path) -> None:
    """Gemma 4's assistant: has no keys and values of its own, reads those of the model it drafts for."""
    from transformers import Gemma4TextConfig

    text = Gemma4TextConfig(**DRAFTER)
    values = {"text_config": text, "backbone_hidden_size": TEXT["hidden_size"], "dtype": "bfloat16"}
    made(files, "Gemma4Assistant", values)


TOYS: dict[str, tuple[Callable[[Path], None], ...]] = {
    "tiny-gemma-4": (partial(made, kind="Gemma4", form="Gemma4Text", values=SMALLEST),),
    "tiny-gemma-4-dense": (with_vision,),
    "tiny-gemma-4-dense-awq": (with_vision, to_int4),
    "tiny-gemma-4-moe": (mixture,),
    "tiny-gemma-4-moe-fp8": (mixture, to_fp8),  # vLLM has no FP8 experts for CPU, so they stay as they are
    "tiny-gemma-4-moe-assistant": (drafter,),
    "tiny-qwen-3.5-moe": (partial(made, kind="Qwen3_5Moe", form="Qwen3_5MoeText", values=QWEN),),
    "tiny-qwen-3.5-dense": (
        partial(made, kind="Qwen3_5", form="Qwen3_5Text", values=QWEN | {"intermediate_size": 256}),
    ),
    "tiny-minimax-m2": (minimax,),
    "tiny-nemotron-h": (partial(made, kind="NemotronH", values=NEMOTRON),),
}


def without_weights(files: Path, shape: dict[str, Any]) -> None:
    """A configuration, and a tokenizer with a text for each of its tokens, so that random weights do say something."""
    from transformers import Gemma4TextConfig

    config = Gemma4TextConfig(**TEXT | shape)
    config.architectures = ["Gemma4ForCausalLM"]
    config.save_pretrained(files)
    written = json.loads((files / "config.json").read_text()) | TEXT | shape
    written.pop("per_layer_config", None)  # newer transformers write it in place of keys that 5.12 reads
    (files / "config.json").write_text(json.dumps(written, indent=1))
    words = json.loads((files / "tokenizer.json").read_text())
    known, used = words["model"]["vocab"], VOCABULARY
    known.update((f"\u0120t{number:x}", number) for number in range(used, shape["vocab_size"]))
    (files / "tokenizer.json").write_text(json.dumps(words, ensure_ascii=False))


TINY_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_global_key_value_heads": 2,
    "max_position_embeddings": 32768,
}
SHAPE_31B = {  # config.json of google/gemma-4-31B-it, its text model
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 1024,
    "final_logit_softcapping": None,
    "max_position_embeddings": 262144,
}
SHAPES: dict[str, tuple[Callable[[Path], None], ...]] = {
    "gemma-4-small-shape": (partial(without_weights, shape=TINY_SHAPE),),
    "gemma-4-31b-shape": (partial(without_weights, shape=SHAPE_31B),),
}
"""For real GPUs, whose engine makes up the weights: `load-format: dummy`."""
