"""--set and -e."""

from __future__ import annotations

import pytest

from cluster.config.overrides import final_recipe, split_env
from cluster.config.recipe import Recipe
from cluster.config.validate import validate
from cluster.config.written import parse_document
from cluster.errors import UsageError

TEXT = """
name: r
model: a/b
image: x:1
vllm: {max_model_len: 4096, gpu-memory-utilization: 0.85, speculative-config: {method: mtp, num: 4}}
env: {A: 1}
memory: {per_host_gib: {1: 100, 2: 60}}
"""


def recipe() -> Recipe:
    return validate(Recipe, parse_document(TEXT, "r.yaml"))


def test_nothing_set_is_the_same_recipe() -> None:
    assert final_recipe(recipe(), []) == recipe()


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("port=8001", "port", 8001),
        ("vllm.max-model-len=32768", "vllm.max-model-len", 32768),
        ("vllm.max_model_len=32768", "vllm.max-model-len", 32768),
        ("max_model_len=32768", "vllm.max-model-len", 32768),
        ("vllm.enforce-eager=true", "vllm.enforce-eager", True),
        ("vllm.kv-cache-dtype='1'", "vllm.kv-cache-dtype", "1"),
        ("vllm.speculative_config.num=2", "vllm.speculative-config", {"method": "mtp", "num": 2}),
        ("speculative_config.num=2", "vllm.speculative-config", {"method": "mtp", "num": 2}),
        ("vllm.speculative-config={method: x}", "vllm.speculative-config", {"method": "x"}),
        ("vllm.new.deep.key=1", "vllm.new", {"deep": {"key": 1}}),
        ("env.B=on", "env.B", "on"),
        ("env.A=1.10", "env.A", "1.10"),
        ("bench.tg=[16, 32]", "bench.tg", [16, 32]),
        ("memory.per_host_gib.2=50", "memory.per_host_gib", {1: 100.0, 2: 50.0}),
        ("summary='a: b = c'", "summary", "a: b = c"),
        ("image=reg:5000/x@sha256:ab", "image", "reg:5000/x@sha256:ab"),
        ("weights=dummy", "weights", "dummy"),
    ],
)
def test_a_value_is_set(text: str, path: str, value: object) -> None:
    found: object = final_recipe(recipe(), [text])
    for part in path.split(".", 1):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    assert found == value


def test_an_empty_value_takes_the_key_away() -> None:
    changed = final_recipe(recipe(), ["vllm.gpu-memory-utilization=", "env.A=null", "memory="])
    assert "gpu-memory-utilization" not in changed.vllm
    assert changed.env == {}
    assert changed.memory.per_host_gib == {}


def test_sets_apply_in_order() -> None:
    assert final_recipe(recipe(), ["port=1", "port=2"]).port == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port", "--set port: KEY=VALUE is wanted | e.g. --set vllm.max-model-len=32768"),
        ("=1", "--set : KEY=VALUE is wanted | e.g. --set vllm.max-model-len=32768"),
        ("a..b=1", "--set a..b: KEY=VALUE is wanted | e.g. --set vllm.max-model-len=32768"),
        ("prot=1", "--set prot: is no recipe key | nearest: port"),
        ("rnus=1", "--set rnus: is no recipe key | nearest: bench.runs"),
        ("max_model_length=1", "--set max_model_length: is no recipe key | nearest: vllm.max-model-len"),
        ("frobnicate=1", "--set frobnicate: is no recipe key | a flag of vLLM is set as vllm.FLAG=VALUE"),
        ("bench.rnus=1", "--set: bench.rnus: is no key here; nearest: runs | "),
        (
            "port=abc",
            "--set: port: found `abc`, wanted a whole number from 1 to 65535 (port of the OpenAI API on the head) | ",
        ),
        (
            "port.x=1",
            "--set: port: found a mapping, wanted a whole number from 1 to 65535 (port of the OpenAI API"
            " on the"
            " head) | ",
        ),
        ("env.A.x=1", "--set env.A.x: `A` is not a mapping | set it as a whole"),
        (
            "mounts.0.source=x",
            "--set: mounts: found a mapping, wanted a list of mappings with source, model_file,"
            " target (patched files given to the container) | ",
        ),
        (
            "vllm.x=on",
            "--set: vllm.x: found `on`, which may mean text or a switch: write true or false, or use quotes | ",
        ),
        (
            "vllm.--x=1",
            "--set vllm.--x: `--x` is no flag's name; it is written without dashes in front: max-model-len | ",
        ),
        (
            "needs.vllm=>=0.24",
            "--set needs.vllm:1:2: is not YAML: expected chomping or indentation indicators, but found '=' | "
            "such a value is quoted twice: --set 'needs.vllm=\">=0.24\"'",
        ),
        ("vllm.x=[1", "--set vllm.x:1:3: is not YAML: expected ',' or ']', but got '<stream end>' | "),
        (
            "env.MY_TOKEN=abc",
            "--set: env.MY_TOKEN: looks like a secret, which no file here may hold; give it with -e MY_TOKEN | ",
        ),
        ("model=", "--set: model: is missing (hub id (`google/gemma-4-31B-it`) or absolute path on the hosts) | "),
    ],
)
def test_what_cannot_be_set(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        final_recipe(recipe(), [text])
    assert f"{caught.value.what} | {caught.value.remedy}" == message


def test_secrets_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "from-the-environment")
    variables = split_env(
        [
            "A=1",
            "B=x=y",
            "E=",
            "my_token=t1",
            "OPENAI_API_KEY=t2",
            "DbPassword=t3",
            "X_SECRET=t4",
            "HF_TOKEN",
            "TOKENIZERS_PARALLELISM=false",
            "A=2",
        ]
    )
    assert variables.plain == {"A": "2", "B": "x=y", "E": "", "TOKENIZERS_PARALLELISM": "false"}
    assert variables.secret == {
        "my_token": "t1",
        "OPENAI_API_KEY": "t2",
        "DbPassword": "t3",
        "X_SECRET": "t4",
        "HF_TOKEN": "from-the-environment",
    }
    assert "t1" not in repr(variables)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("NOT_SET_ANYWHERE", "-e NOT_SET_ANYWHERE: is not set in your environment"),
        ("A B=hunter2", "-e: `A B` is no name of an environment variable (letters, digits and _)"),
        ("=hunter2", "-e: `` is no name of an environment variable (letters, digits and _)"),
        ("A=hunter2\x00", "-e A: the value holds a NUL character"),
    ],
)
def test_what_is_no_variable(word: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    with pytest.raises(UsageError) as caught:
        split_env([word])
    assert caught.value.what == message
    assert "hunter2" not in f"{caught.value.what}{caught.value.remedy}"
