"""Example = validation = documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.config.describe import ITEM, NAME, annotated, keys
from cluster.config.inventory import Inventory, InventoryFile
from cluster.config.load import read_inventory, read_recipe, same_machines
from cluster.config.recipe import Recipe
from cluster.config.validate import validate
from cluster.config.written import parse_document

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "inventory/example.yaml"
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


def paths(value: Any, prefix: str = "") -> set[str]:
    """Dotted paths of a value; names that belong to the user become NAME."""
    if isinstance(value, list):
        return {path for item in value for path in paths(item, f"{prefix}{ITEM}")}
    if not isinstance(value, dict):
        return set()
    found = set()
    for key, inner in value.items():
        name = NAME if prefix in ("hosts.", "groups.") or prefix.endswith("env.") else key
        found |= {f"{prefix}{name}"} | paths(inner, f"{prefix}{name}.")
    return found


def test_the_example_has_every_key_and_loads() -> None:
    file = InventoryFile(read_inventory(EXAMPLE), EXAMPLE)
    assert list(same_machines(file)) == []
    written = paths(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")))
    missing = {key.path for key in keys(Inventory)} - written
    assert missing == set()


def test_every_key_is_described() -> None:
    for model in (Inventory, Recipe):
        for key in keys(model):
            assert len(key.description) > 5, key.path
            assert not key.description.endswith("."), key.path
            assert key.description[0].islower() or key.description.split()[0].strip(",;") in (
                "SSH",
                "CPU",
                "GPU",
                "Hugging",
                "MemAvailable",
                "vLLM",
                "Ray",
            ), key.path


def test_kinds_are_said_in_words() -> None:
    kinds = {key.path: (key.kind, key.default, key.required) for key in (*keys(Inventory), *keys(Recipe))}
    assert kinds["hosts.NAME.port"] == ("a whole number from 0 to 65535", "0", False)
    assert kinds["hosts.NAME.address"] == ("text", "", True)
    assert kinds["groups"] == ("a mapping of names to lists of text", "", False)
    assert kinds["backend"] == ("`ray` or `mp`", "ray", False)
    assert kinds["before_serve"] == ("a list of lists of text", "", False)
    assert kinds["memory.per_host_gib"] == ("a mapping of whole numbers to numbers above 0", "", False)
    assert kinds["reference[].rows[].t_s"] == ("a number above 0", "", False)
    assert kinds["bench.depth"] == ("a list of whole numbers, 0 or more", "[0, 4096, 8192, 16384]", False)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_what_show_prints_is_the_same_recipe(path: Path) -> None:
    recipe = read_recipe(path)
    again = validate(Recipe, parse_document(annotated(recipe), "shown"))
    assert again == recipe
    assert all(len(line) <= 110 for line in annotated(recipe).splitlines() if line.startswith("#"))


def test_show_says_what_is_a_default() -> None:
    text = annotated(Recipe(model="a/b", image="x:1", env={"A": "1", "B": "on"}))
    assert "# port of the OpenAI API on the head (default)\nport: 8000\n" in text
    assert "# environment of every rank; never a secret\nenv:\n  A: '1'\n  B: 'on'\n" in text
