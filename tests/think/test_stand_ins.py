"""`cluster lab toy`: every recipe for a Spark has a toy, and each word of it replaces something the recipe says."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from cluster.cli import lab
from cluster.cli.options import Parser
from cluster.config.recipe import final_recipe, read_recipe
from cluster.errors import UsageError
from cluster.lab.stand_ins import EVERYWHERE, NO_TOY, STAND_INS, WITHOUT_AVX512, cpu_flags

ROOT = Path(__file__).parents[2]
REAL = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml") if not path.stem.startswith("lab-"))
MADE = set(re.findall(r'^    "(tiny-[^"]+)": ', (ROOT / "cluster/lab/model/shapes.py").read_text(), re.M))


def told(*words: str) -> str:
    """What `cluster lab toy` prints."""
    parser = Parser()
    lab.configure(parser)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert lab.run(parser.parse_args(["toy", *words])) == 0
    return out.getvalue()


def test_every_recipe_for_a_spark_has_one_or_a_reason() -> None:
    assert sorted(STAND_INS | NO_TOY) == REAL
    used = {made.toy for made in STAND_INS.values()} | {"tiny-gemma-4", "tiny-gemma-4-moe-assistant"}
    assert used == MADE


@pytest.mark.parametrize("name", STAND_INS)
def test_words_are_those_of_up_and_each_replaces_something(name: str) -> None:
    head, *words = shlex.split(told(name))
    assert head == name
    assert words[::2] == ["--set"] * (len(words) // 2)
    whole = read_recipe(ROOT / f"recipes/{name}.yaml")
    final = final_recipe(whole, words[1::2])
    assert (final.model, final.weights) == (f"cluster-lab/{STAND_INS[name].toy}", "dummy")
    for text in words[1::2]:
        assert final_recipe(whole, [text]) != whole, text
    kept = set(final.vllm) - {"speculative-config"}
    gone = {text.partition("=")[0].removeprefix("vllm.") for text, _why in STAND_INS[name].all_replaced(cpu_flags())}
    assert set(whole.vllm) - kept - {"speculative-config"} == gone & set(whole.vllm) - {"speculative-config"}


@pytest.mark.parametrize("name", STAND_INS)
def test_fp8_cache_is_left_out_only_where_the_cpu_has_none(name: str) -> None:
    """vLLM 0.32: "FP8 KV cache on CPU requires x86 with AVX-512 or AMX."; Arm has one and tells no flags here."""
    fp8_cache = read_recipe(ROOT / f"recipes/{name}.yaml").vllm.get("kv-cache-dtype") == "fp8"
    for flags, lacks in (({"avx2"}, True), ({"avx2", "avx512f"}, False), ({"amx_tile"}, False), (set(), False)):
        assert (WITHOUT_AVX512 in STAND_INS[name].all_replaced(flags)) == (lacks and fp8_cache)


def test_table_says_why() -> None:
    rows = told().splitlines()
    for name, made in STAND_INS.items():
        assert any(row.split()[:2] == [name, made.toy] for row in rows)
    assert all(f"  --set {text}  {why}" in rows for text, why in EVERYWHERE)
    assert all(any(row.startswith(name) and why in row for row in rows) for name, why in NO_TOY.items())


def test_page_of_the_lab_names_each_toy_beside_its_recipe() -> None:
    page = (ROOT / "docs/lab.md").read_text()
    for name, made in STAND_INS.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"`{made.toy}`" in row
        for text, _why in made.replaced:
            assert f"`{text.partition('=')[0]}`" in row, row
    assert all(f"`{name}`" in page for name in NO_TOY)


@pytest.mark.parametrize("name", NO_TOY)
def test_recipe_without_a_toy_is_told_why(name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{name}: {NO_TOY[name]}")):
        told(name)


def test_unknown_recipe_is_told_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"gemma-4-31b-fp8\?$"):
        told("gemma-4-31b-fp9")
