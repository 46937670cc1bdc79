"""The words of `vllm serve` that matter here; every other flag is accepted and ignored."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any


def parse(words: list[str]) -> argparse.Namespace:
    """Read `serve MODEL …`. `quick` is what --additional-config '{"quick": {…}}' asks of the simulation:
    `ready_after_s`, `fail` (text to fail with), `mib` (memory of a worker), `hang_after_steps` (one a token, one a
    prompt: then no token comes any more and /health stays green)."""
    parser = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--revision", default="main")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", nargs="+", default=[])
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
    parser.add_argument("--distributed-executor-backend", default="")
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=29501)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--max-model-len", type=int, default=32768)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--enable-auto-tool-choice", action="store_true")
    parser.add_argument("--api-key", default=os.environ.get("VLLM_API_KEY", ""))
    parser.add_argument("--additional-config", default="{}")
    given, _ignored = parser.parse_known_args(words)
    given.names = given.served_model_name or [given.model]
    given.size = given.tensor_parallel_size * given.pipeline_parallel_size
    given.quick = _quick(given.additional_config)
    return given


def _quick(text: str) -> dict[str, Any]:
    value = json.loads(text)
    return dict(value.get("quick", {})) if isinstance(value, dict) else {}
