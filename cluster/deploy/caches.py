"""Where compiled kernels are kept: one directory for every deployment whose kernels vLLM would take for the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

NOT_COMPILED = {
    "gpu-memory-utilization", "kv-cache-memory-bytes", "num-gpu-blocks-override", "enable-prefix-caching",
    "prefix-caching-hash-algo", "seed", "limit-mm-per-prompt", "mm-processor-kwargs", "mm-processor-cache-gb",
    "logprobs-mode", "tokenizer", "tokenizer-mode", "tokenizer-revision", "disable-custom-all-reduce",
    "max-parallel-loading-workers", "enable-auto-tool-choice", "tool-call-parser", "reasoning-parser", "chat-template",
    "enable-log-requests", "uvicorn-log-level", "api-server-count", "allowed-origins", "disable-log-stats",
    "enable-chunked-prefill", "scheduling-policy", "load-format", "stream-interval",
}  # fmt: skip
"""Flags that vLLM's own cache key does not hold (`compute_hash` of each of its configurations, 0.32), or that only its
API server reads. A flag that is not here gives a directory of its own: one more compilation, never a wrong kernel."""

PARTS = ("tp", "pp", "image_content", "dockerfile", "mounts", "env", "host_env", "words")


def cache_name(spec: Mapping[str, Any]) -> str:
    """The recipe's name, and eight hex digits of SHA-256 over the parts of a spec that decide what is compiled."""
    recipe = spec["recipe"]
    kept = {
        "model": [recipe["model"], recipe["revision"]],
        "vllm": {flag: value for flag, value in recipe["vllm"].items() if flag not in NOT_COMPILED},
        "env": recipe["env"],
        "parts": {part: spec.get(part) for part in PARTS},
    }
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    return f"{recipe['name']}-{digest[:8]}"
