"""Recipes of Sparks on the real engine, with toys in their models' places, as `cluster lab toy` words it.

The dense reference, then the mixture: FP8 made while loading, FP8 cache, a vision tower, both of Gemma's parsers; a
patched file over vLLM's own, experts. The other recipes were run by hand (docs/lab.md).
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from hosts_now import assert_nothing_of_ours
from own_lab import Lab
from person import Person, Ran

from cluster.lab.stand_ins import WITHOUT_AVX512
from cluster.probe.vision import FIRST, shown

ALONE = ("--solo", "-n", "spark1")
BENCH = ("--pp", "256", "--tg", "16", "--depth", "0", "512", "--runs", "2")
PATCHED = "/opt/engine/lib/python3.11/site-packages/vllm/model_executor/models/gemma4.py"


def toy(person: Person, recipe: str) -> list[str]:
    """The words that run a recipe with its toy."""
    return shlex.split(person.must("lab", "toy", recipe).out)


def assert_started(lab: Lab, ran: Ran, model: str, *lines: str) -> None:
    """Its answers are not judged, and the engine's log has what the recipe asks for."""
    assert re.search(rf"^ready: {re.escape(model)} at .*TP=1 on spark1", ran.out, re.M), ran
    assert "weights are random" in ran.err
    log = lab.tell("spark1", "docker logs $(docker ps -q) 2>&1")
    for line in lines:
        assert re.search(line, log), line
    if WITHOUT_AVX512[0] not in ran.words:
        assert "Using fp8 data type to store kv cache" in log


def assert_probed(ran: Ran, *passed: str) -> None:
    """Nothing failed; what random words cannot show is left out, and these are not."""
    outcomes: dict[str, str] = {case["id"]: case["outcome"] for case in ran.document["cases"]}
    assert "fail" not in outcomes.values(), ran
    assert [outcomes[name] for name in passed] == ["pass"] * len(passed), ran
    assert outcomes["tools-parallel"] == "not applicable"


def assert_measured(ran: Ran) -> None:
    """Each row has a number."""
    rows = re.findall(r"^\S+ +(pp256|tg16)( @ d512)? +([\d.]+) ±", ran.out, re.M)
    assert {(test, depth) for test, depth, _t_s in rows} == {(t, d) for t in ("pp256", "tg16") for d in ("", " @ d512")}
    assert all(float(t_s) > 0 for _test, _depth, t_s in rows)


def usage_with_picture(lab: Lab, model: str) -> Any:
    """What vLLM counts of a question with a picture in it."""
    parts = [
        {"type": "text", "text": "What is this?"},
        shown(FIRST)["content"][0],
    ]
    body = json.dumps({"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": parts}]})
    post = "curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d"
    return json.loads(lab.tell("spark1", f"{post} {shlex.quote(body)}"))["usage"]


@pytest.mark.campaign
def test_dense_reference_then_the_mixture(lab: Lab, person: Person) -> None:
    """up → probe → bench → swap → probe → down, through recipes/gemma-4-31b-fp8 and gemma-4-26b-a4b-nvfp4."""
    up = person.must("up", *toy(person, "gemma-4-31b-fp8"), *ALONE)
    dense = "cluster-lab/tiny-gemma-4-dense"
    assert_started(lab, up, dense, "fp8_per_tensor")
    assert usage_with_picture(lab, dense)["prompt_tokens"] > 200  # most of them the picture's
    assert_probed(person.must("probe", "--json"), "tools-auto")
    assert_measured(person.must("bench", *BENCH))

    swapped = person.must("swap", *toy(person, "gemma-4-26b-a4b-nvfp4"), *ALONE)
    assert_started(lab, swapped, "google/gemma-4-26B-A4B-it")
    patched = lab.tell("spark1", f"docker exec $(docker ps -q) tail -1 {PATCHED}")
    assert "from a toy's repository" in patched
    assert_probed(person.must("probe", "--json"), "tools-auto")
    person.must("down")
    assert_nothing_of_ours(lab)
