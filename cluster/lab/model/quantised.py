# mypy: disable-error-code="import-not-found,import-untyped,no-any-return,no-untyped-call"
"""Checkpoints as llm-compressor writes them: the format is compressed-tensors, named in config.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

GROUP = 32
LEFT = ["lm_head", "re:.*vision.*", "re:.*embed.*", "re:.*router.*", "re:.*experts.*"]
FP8 = {
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True},
}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True, "dynamic": False}
Pieces = Iterator[tuple[str, Any]]


def fp8(name: str, weight: Any) -> Pieces:
    """A scale for each row, so that its largest value is FP8's largest."""
    import torch

    scale = (weight.float().abs().amax(dim=1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max).clamp(min=1e-12)
    yield name, (weight.float() / scale).to(torch.float8_e4m3fn)
    yield f"{name}_scale", scale.to(torch.bfloat16)


def int4(name: str, weight: Any) -> Pieces:
    """Eight values in an int32, a scale for each group of a row."""
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    groups = weight.float().view(weight.shape[0], -1, GROUP)
    scale = groups.abs().amax(dim=2).clamp(min=1e-8) / 7
    values = (groups / scale[..., None]).round().clamp(-8, 7).view(weight.shape).to(torch.int8)
    yield f"{name}_packed", pack_to_int32(values, 4)
    yield f"{name}_scale", scale.to(torch.bfloat16)
    yield f"{name}_shape", torch.tensor(weight.shape)


def _rewrite(form: str, group: dict[str, Any], split: Callable[[str, Any], Pieces], files: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = files / "model.safetensors"
    pieces: dict[str, Any] = {}
    for name, weight in load_file(path).items():
        linear = "language_model.layers" in name and weight.dim() == 2 and "router" not in name
        pieces.update(split(name, weight) if linear else {name: weight})
    save_file(pieces, path, metadata={"format": "pt"})
    config = json.loads((files / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": LEFT,
        "config_groups": {"group_0": {"targets": ["Linear"], **group}},
    }
    (files / "config.json").write_text(json.dumps(config, indent=2) + "\n")


to_fp8 = partial(_rewrite, "float-quantized", FP8, fp8)
"""FP8-Dynamic: inputs are scaled as they come."""
to_int4 = partial(_rewrite, "pack-quantized", {"weights": INT4}, int4)
"""W4A16."""
