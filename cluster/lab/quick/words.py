"""The words of `vllm serve` that matter here (every other flag is accepted and ignored), and lines of its log."""

from __future__ import annotations

import argparse
import json
import os
import time

OPTIONS = {
    "--revision": "main",
    "--host": "0.0.0.0",
    "--port": 8000,
    "--distributed-executor-backend": "",
    "--nnodes": 1,
    "--node-rank": 0,
    "--master-addr": "127.0.0.1",
    "--master-port": 29501,
    "--max-model-len": 32768,
    "--max-num-seqs": 256,
    "--api-key": os.environ.get("VLLM_API_KEY", ""),
    "--additional-config": "{}",
}


def parse(words: list[str]) -> argparse.Namespace:
    """Read `serve MODEL …`. `quick` is what --additional-config '{"quick": {…}}' asks of the simulation:
    `ready_after_s`, `fail` (text to fail with), `mib` (memory of a worker), `mib_s` (so fast; left out: in one jump),
    `grow_mib`, `grow_mib_s`, `grow_after_s` (so much more later), `hang_after_steps` (one a token, one a prompt: then
    no more tokens are made and /health stays green)."""
    parser = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--served-model-name", nargs="+", default=[])
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
    for flag in ("--headless", "--enable-auto-tool-choice"):
        parser.add_argument(flag, action="store_true")
    for flag, default in OPTIONS.items():
        parser.add_argument(flag, type=type(default), default=default)
    given, _ignored = parser.parse_known_args(words)
    given.names = given.served_model_name or [given.model]
    given.size = given.tensor_parallel_size * given.pipeline_parallel_size
    given.quick = dict(json.loads(given.additional_config).get("quick", {}))
    return given


def log(who: str, text: str) -> None:
    """One line as vLLM writes them."""
    print(f"({who} pid={os.getpid()}) INFO {time.strftime('%m-%d %H:%M:%S')} [quick] {text}", flush=True)
