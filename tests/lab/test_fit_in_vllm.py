"""`cluster fit` beside vLLM itself (0.32, CPU): bytes of the weights on each rank, and tokens of the cache, for toys.

What vLLM held is kept in tests/samples/held, which tests/think/test_model_weights.py reads; UPDATE_HELD=1 writes it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from own_lab import CACHE, Lab

from cluster.model.checkpoint import read_local

SAMPLES = Path(__file__).parents[1] / "samples" / "held"
SCRIPT = Path(__file__).with_name("held_by_vllm.py")
ENGINE = Path(CACHE, "engine")
TOYS = ("tiny-gemma-4", "tiny-gemma-4-dense", "tiny-gemma-4-moe", "tiny-qwen-3.5-moe")


def held_by_vllm(model: Path, tp: int, place: Path) -> Any:
    """What each rank of vLLM holds of a model."""
    shutil.copy(SCRIPT, place / "sitecustomize.py")
    additions = next(Path(CACHE).glob("engine-additions-*/lib/python3.*/site-packages"))
    paths = {"PYTHONPATH": f"{place}:{additions}", "PATH": f"{ENGINE}/bin:{os.environ['PATH']}"}
    cpu = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    words = [f"{ENGINE}/bin/python3", str(SCRIPT), str(model), str(tp), str(place / "held.json")]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **paths, **cpu}, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((place / "held.json").read_text())


@pytest.mark.campaign
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("toy", TOYS)
def test_vllm_holds_what_was_recorded(toy: str, lab: Lab, tmp_path: Path) -> None:
    """At TP=1 and TP=2; the lab has the toys in its cache."""
    [model] = max(Path(CACHE).glob("models-toys-*"), key=os.path.getmtime).glob(f"*--{toy}/snapshots/*")
    one = read_local(model)
    runs = {str(tp): held_by_vllm(model, tp, tmp_path) for tp in (1, 2)}
    found = {"config": one.config, "tensors": [astuple(tensor) for tensor in one.tensors], "runs": runs}
    sample = SAMPLES / f"{toy}.json"
    if "UPDATE_HELD" in os.environ:
        sample.write_text(json.dumps(found, indent=None, separators=(",", ":")) + "\n")
    assert json.loads(json.dumps(found)) == json.loads(sample.read_text())
