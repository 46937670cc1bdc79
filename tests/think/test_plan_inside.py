"""What an image holds, and whether it will do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from plan_tools import names, recipe, wanted

from cluster.argv.question import Answer
from cluster.spark.fact import Missing
from cluster.spark.image import Inside, check_equal, check_inside, parse_inside
from cluster.spark.request import Backend

GOOD = Inside("3.12.3", "0.32.0", "2.56.0", "5.6.0", "2.27.3", True, ("GPU 0: NVIDIA GB10",))
NEEDS = recipe(needs={"vllm": ">=0.19", "ray": ">=2.52", "transformers": ">=5.5"})


def told(**changes: Any) -> Answer:
    """As far/image prints it."""
    value = {
        "python": "3.12.3",
        "versions": {"vllm": "0.32.0", "ray": "2.56.0", "transformers": "5.6.0", "nccl": "2.27.3"},
        "knows_architecture": True,
        "gpus": ["GPU 0: NVIDIA GB10"],
        "gpu_error": "",
    }
    return Answer(0, json.dumps(value | changes).encode())


def test_the_probe_is_read() -> None:
    assert parse_inside(told()) == GOOD
    nothing = {"vllm": None, "ray": None}
    bare = parse_inside(told(versions=nothing, gpus=[], knows_architecture=None, gpu_error="no smi"))
    assert bare == Inside("3.12.3", "", "", "", "", None, (), "no smi")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(None), "timeout"),
        (Answer(125, b"", b"docker: Error response from daemon: x\n\nRun 'docker run --help'"), "unreadable"),
        (Answer(0, b"banner\n{}"), "unreadable"),
        (Answer(0, b"{}"), "unreadable"),
        (Answer(0, b"[]"), "unreadable"),
        (Answer(137), "unreadable"),
    ],
)
def test_a_probe_that_failed(answer: Answer, kind: str) -> None:
    found = parse_inside(answer)
    assert isinstance(found, Missing)
    assert found.kind == kind
    assert "Run 'docker run --help'" not in found.why
    assert names(check_inside(wanted(), "spark1", found)) == [("fault", "container")]


def test_a_missing_gpu_driver_has_its_remedy() -> None:
    words = b'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n'
    [fault] = check_inside(wanted(), "spark1", parse_inside(Answer(125, b"", words)))
    assert "nvidia-ctk" in fault.remedy


IMAGE = "image example.org/vllm:1"
CASES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "ray", ""),
    ({"ray": ""}, "ray", f"Ray not found in {IMAGE}"),
    ({"ray": ""}, "mp", ""),
    ({"ray": ""}, "none", ""),
    ({"ray": "2.51.0"}, "ray", f"Ray >=2.52 required, {IMAGE} has 2.51.0"),
    ({"vllm": ""}, "mp", f"vLLM not found in {IMAGE}"),
    ({"vllm": "0.19.1rc1.dev31+ga88ce94bb"}, "mp", ""),  # a nightly counts as its version
    ({"vllm": "spark-build-7"}, "mp", ""),  # a version of its own kind
    ({"transformers": "4.57.0"}, "mp", f"transformers >=5.5 required, {IMAGE} has 4.57.0"),
    ({"gpus": ()}, "mp", "no GPU is seen inside a container"),
    ({"knows_architecture": False}, "mp", "vLLM 0.32.0 in example.org/vllm:1 does not support ToyForCausalLM"),
    ({"knows_architecture": None}, "mp", ""),  # it is not known
]


@pytest.mark.parametrize(("changes", "backend", "expected"), CASES)
def test_inside(changes: dict[str, Any], backend: Backend, expected: str) -> None:
    found = list(check_inside(wanted(backend=backend, of=NEEDS), "spark1", replace(GOOD, **changes)))
    assert [one.what for one in found] == ([expected] if expected else [])
    assert all(one.level == "fault" and one.remedy for one in found)


def test_vllm_and_ray_are_needed_even_when_no_version_is() -> None:
    bare = replace(GOOD, vllm="", ray="", transformers="")
    assert [one.what.split()[0] for one in check_inside(wanted(), "spark1", bare)] == ["vLLM", "Ray"]


@pytest.mark.parametrize("key", ["python", "vllm", "ray"])
def test_what_must_be_equal_in_all_images(key: str) -> None:
    other = replace(GOOD, **{key: "9.9"})
    [fault] = check_equal({"spark1": GOOD, "spark2": other})
    assert (fault.level, fault.check) == ("fault", "image-parity")
    assert f"spark1 {getattr(GOOD, key)}, spark2 9.9" in fault.evidence
    assert list(check_equal({"spark1": GOOD, "spark2": Missing("no")})) == []
    assert list(check_equal({"spark1": GOOD, "spark2": replace(GOOD, transformers="1", nccl="1", gpus=())})) == []
