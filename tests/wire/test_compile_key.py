"""The flags that share a directory of compiled kernels, against the real vLLM's own hash of what it compiles."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cluster.argv.vllm import flag_words
from cluster.deploy.rank import NOT_COMPILED

HASHES = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
ServeSubcommand().subparser_init(parser.add_subparsers())
def hash_of(words):
    parsed = parser.parse_args(["serve", *words])
    parsed.model = parsed.model_tag
    return AsyncEngineArgs.from_cli_args(parsed).create_engine_config().compute_hash()
print(json.dumps([hash_of(words) for words in json.load(sys.stdin)]))
"""
OTHERWISE = {
    "gpu-memory-utilization": 0.5,
    "kv-cache-memory-bytes": 1 << 27,
    "num-gpu-blocks-override": 99,
    "enable-prefix-caching": False,
    "prefix-caching-hash-algo": "sha256_cbor",
    "seed": 5,
    "limit-mm-per-prompt": {"image": 0},
    "mm-processor-kwargs": {"max_soft_tokens": 70},
    "mm-processor-cache-gb": 1,
    "logprobs-mode": "raw_logits",
    "tokenizer-mode": "slow",
    "disable-custom-all-reduce": True,
    "max-parallel-loading-workers": 1,
    "enable-auto-tool-choice": True,
    "tool-call-parser": "gemma4",
    "reasoning-parser": "gemma4",
    "chat-template": "{{ messages }}",
    "enable-log-requests": True,
    "uvicorn-log-level": "warning",
    "api-server-count": 2,
    "allowed-origins": '["http://a"]',
    "disable-log-stats": True,
    "enable-chunked-prefill": False,
    "scheduling-policy": "priority",
    "load-format": "dummy",
    "stream-interval": 3,
}
"""Each flag with a value that is not its default."""
COMPILED = {"max-num-seqs": 7, "kv-cache-dtype": "fp8", "max-logprobs": 5, "generation-config": "vllm"}
"""Flags of which vLLM's hash does tell: the comparison can fail."""


def hashes(*sent: list[str]) -> list[str]:
    """vLLM's hash of each argv."""
    engine = os.environ.get("CLUSTER_TEST_ENGINE", "")
    if not Path(engine, "bin/python3").exists():
        pytest.skip("the lab's engine is not built yet (cluster lab up), so the real vLLM is not asked")
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    words = [f"{engine}/bin/python3", "-c", HASHES]
    done = subprocess.run(words, input=json.dumps(sent), capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def toy() -> str:
    """A model that the lab has made."""
    cache = Path(os.environ.get("CLUSTER_TEST_ENGINE", "/nowhere")).parent
    made = sorted(cache.glob("models-*/models--cluster-lab--tiny-gemma-4/snapshots/*"))
    if not made:
        pytest.skip("the lab has made no model yet (cluster lab up)")
    return str(made[0])


def test_vllm_does_not_hash_what_shares_a_directory() -> None:
    model, rest = toy(), set(NOT_COMPILED) - set(OTHERWISE)
    assert rest == {"tokenizer", "tokenizer-revision"}  # they name another place of the same
    base = [model, "--max-model-len", "256"]
    flags = {**OTHERWISE, **COMPILED}
    plain, *found = hashes(base, *([*base, *flag_words(flag, value)] for flag, value in flags.items()))
    same = {flag for flag, one in zip(flags, found, strict=True) if one == plain}
    assert same == set(OTHERWISE)
