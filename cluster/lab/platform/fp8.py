# mypy: disable-error-code="import-not-found,import-untyped,misc,no-any-return"
"""What vLLM's CPU build declares and lacks: weights made FP8 while they are loaded, with one scale for all of them."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Entry point of group `vllm.general_plugins`; vLLM calls it in each of its processes before a model is made."""
    import torch
    from vllm import _custom_ops

    theirs = _custom_ops.scaled_fp8_quant
    top = torch.finfo(torch.float8_e4m3fn).max

    def scaled_fp8_quant(input: Any, scale: Any = None, *more: Any, **named: Any) -> Any:
        if scale is None or scale.numel() != 1 or more or named:
            return theirs(input, scale, *more, **named)
        return (input.float() / scale).clamp(-top, top).to(torch.float8_e4m3fn), scale

    _custom_ops.scaled_fp8_quant = scaled_fp8_quant
