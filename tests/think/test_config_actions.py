"""`cluster recipes` and `cluster inventory`, as JSON and as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.main import main

RECIPE = "model: a/b\nimage: x:1\nsummary: mine\n"
INVENTORY = """
hosts:
  spark1: {address: 192.168.1.41, user: ann}
  spark2: {address: 192.168.1.42}
groups: {pair: [spark1, spark2]}
defaults: {user: nvidia, env: {A: 1}}
default_recipe: mine
"""


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with one recipe, a broken one, and an inventory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLUSTER_INVENTORY", raising=False)
    for folder in ("recipes", "inventory"):
        (tmp_path / folder).mkdir()
    (tmp_path / "recipes/mine.yaml").write_text(RECIPE)
    (tmp_path / "recipes/broken.yaml").write_text("model: a/b\n")
    (tmp_path / "inventory/default.yaml").write_text(INVENTORY)


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The one JSON document of a command that succeeds."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_recipes_list_has_broken_ones_too(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "recipes", "list")
    rows = {row["name"]: row for row in found["recipes"]}
    assert found["default"] == "mine"
    assert rows["mine"]["where"] == "./recipes"
    assert rows["gemma-4-31b-fp8"]["where"] == "packaged"
    assert "image: is missing" in rows["broken"]["error"]
    assert main(["recipes", "list"]) == 0
    assert "mine *" in capsys.readouterr().out


def test_recipes_show_takes_the_default_and_sets(capsys: pytest.CaptureFixture[str]) -> None:
    shown = document(capsys, "recipes", "show", "--set", "vllm.max_model_len=5")
    assert (shown["path"], shown["recipe"]["name"]) == ("recipes/mine.yaml", "mine")
    assert shown["recipe"]["vllm"] == {"max-model-len": 5}
    assert main(["recipes", "show", "mine"]) == 0
    assert "# port of the OpenAI API on the head (default)\nport: 8000\n" in capsys.readouterr().out


def test_recipes_check_is_2_when_one_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "check"]) == 2
    out = capsys.readouterr().out
    assert "recipes/mine.yaml: ok" in out
    assert "recipes/broken.yaml: image: is missing" in out
    assert main(["recipes", "check", "mine"]) == 0


def test_inventory_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "inventory", "list") == {
        "path": "inventory/default.yaml",
        "hosts": ["spark1", "spark2"],
        "groups": {"pair": ["spark1", "spark2"]},
        "default_recipe": "mine",
    }
    hosts = document(capsys, "inventory", "show", "pair")["hosts"]
    assert [(host["name"], host["user"], host["env"]) for host in hosts] == [
        ("spark1", "ann", {"A": "1"}),
        ("spark2", "nvidia", {"A": "1"}),
    ]
    assert main(["inventory", "show", "spark2"]) == 0
    assert "  hf_home: ~/.cache/huggingface\n" in capsys.readouterr().out


def test_errors_are_a_json_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inventory", "show", "sprak1", "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert (error["exit"], "nearest: spark1" in error["hint"]) == (2, True)
