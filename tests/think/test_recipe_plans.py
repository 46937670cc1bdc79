"""What each packaged recipe comes to: the dry-run plan of `up`, and an argv that vLLM's own parser takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_parser import parse
from golden_plans import compare, plan
from plan_tools import seen, wanted

from cluster.argv.vllm import Layout, vllm_serve
from cluster.cli.recipes import problems_of
from cluster.config.find import shipped
from cluster.config.load import load_recipe, read_dockerfile, read_mounts
from cluster.config.recipe import Recipe

NAMES = sorted(path.stem for path in shipped("recipes").glob("*.yaml"))
SIZES = [(name, 1) for name in NAMES] + [("gemma-4-31b-fp8", 2), ("gemma-4-26b-a4b-bf16", 2)]
"""Every recipe on one host, and one of each backend on two."""


@pytest.mark.parametrize("name", NAMES)
def test_check_finds_nothing(name: str) -> None:
    assert list(problems_of(shipped("recipes") / f"{name}.yaml")) == []


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_the_plan(name: str, size: int) -> None:
    recipe = load_recipe(name).recipe
    of = wanted(
        size,
        recipe.backend if size > 1 else "none",
        recipe,
        mounted=read_mounts(recipe.mounts),
        dockerfile=read_dockerfile(recipe.dockerfile),
    )
    hosts = [seen(number) for number in range(1, size + 1)]
    compare(f"recipes/{name}-tp{size}", plan(of, hosts).lines(), recipe=name)


def test_the_real_parser_takes_every_argv(tmp_path: Path) -> None:
    recipes = [load_recipe(name).recipe for name in NAMES]
    parsed = parse([vllm_serve(recipe, Layout(1, 1, "none", ("127.0.0.1",))) for recipe in recipes], tmp_path)
    for recipe, arguments in zip(recipes, parsed.arguments, strict=True):
        assert arguments["model_tag"] == recipe.model, recipe.name
        assert not unequal(recipe, arguments), recipe.name


def unequal(recipe: Recipe, arguments: dict[str, object]) -> list[str]:
    """Flags of a recipe that arrived as something else."""
    told = {flag: arguments[flag.replace("-", "_")] for flag in recipe.vllm}
    return [flag for flag, value in recipe.vllm.items() if told[flag] != value]
