"""One level of `extends`: what is merged, what is replaced, and which file a message names."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.config.extend import read_extended
from cluster.config.find import shipped
from cluster.config.load import load_recipe, read_recipe
from cluster.errors import UsageError

PARENT = """\
name: the-parent
summary: parent
model: a/b
image: x:1
vllm:
  max-model-len: 4096
  quantization: fp8
  speculative-config: {method: mtp, num_speculative_tokens: 4}
env: {LEVEL: INFO, CACHE: 1}
mounts:
  - {source: patch.py, target: /opt/p.py}
problems:
  - what: an old one
"""


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A parent with its patch in a folder of its own; the current folder is the desk."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "family").mkdir()
    (tmp_path / "family/parent.yaml").write_text(PARENT)
    (tmp_path / "family/patch.py").write_text("patched")
    return tmp_path


def child(text: str, file: str = "child.yaml") -> Path:
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text("extends: family/parent.yaml\n" + text)
    return Path(file)


def error_of(path: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_recipe(path)
    return caught.value


def test_scalars_and_lists_replace_and_mappings_merge() -> None:
    recipe = read_recipe(
        child(
            "summary: child\n"
            "vllm: {max_model_len: 8192, speculative-config: {num_speculative_tokens: 2}, seed: 1}\n"
            "env: {LEVEL: DEBUG}\nproblems: [{what: a new one}]\n"
        )
    )
    assert (recipe.name, recipe.summary, recipe.model) == ("child", "child", "a/b")
    assert recipe.vllm == {
        "quantization": "fp8",
        "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
        "max-model-len": 8192,
        "seed": 1,
    }
    assert recipe.env == {"LEVEL": "DEBUG", "CACHE": "1"}
    assert [problem.what for problem in recipe.problems] == ["a new one"]


def test_a_key_without_a_value_is_taken_away() -> None:
    recipe = read_recipe(child("vllm: {quantization: }\nenv: {CACHE: }\nproblems:\nmounts:\n"))
    assert "quantization" not in recipe.vllm
    assert recipe.env == {"LEVEL": "INFO"}
    assert (recipe.problems, recipe.mounts) == ([], [])


def test_what_is_not_said_is_as_the_parent_has_it(desk: Path) -> None:
    recipe, parent = read_recipe(child("")), read_recipe(Path("family/parent.yaml"))
    assert recipe.name == "child"
    assert recipe.model_dump(exclude={"name"}) == parent.model_dump(exclude={"name"})
    assert recipe.mounts[0].source == str(desk / "family/patch.py")
    assert recipe.extends == ""


def test_a_mount_of_the_child_starts_at_its_own_folder() -> None:
    path = child("mounts: [{source: own.py, target: /opt/p.py}]\n")
    Path("own.py").write_text("own")
    assert read_recipe(path).mounts[0].source == str(Path("own.py").absolute())


def test_each_key_keeps_its_file_and_line() -> None:
    document, parent = read_extended(child("vllm:\n  max_model_len: 1\nproblems:\n  - what: x\n"))
    assert parent == Path("family/parent.yaml")
    assert document.where(("vllm", "max_model_len")) == "child.yaml:3"
    assert document.where(("vllm", "quantization")) == "family/parent.yaml:7"
    assert document.where(("image",)) == "family/parent.yaml:4"
    assert document.where(("problems", 0, "what")) == "child.yaml:5"
    assert document.where(("nothing",)) == "child.yaml"


def test_a_message_names_the_file_that_is_wrong() -> None:
    assert error_of(child("vlm: {seed: 1}\n")).what == "child.yaml:2: vlm: is no key here; nearest: vllm"
    Path("family/parent.yaml").write_text(PARENT + "port: x\n")
    assert error_of(child("")).what.startswith("family/parent.yaml:14: port: found `x`, wanted a whole number")
    Path("family/parent.yaml").write_text(PARENT.replace("patch.py", "no.py"))
    assert error_of(child("")).what.startswith("family/parent.yaml:11: mounts.0.source: there is no file")


@pytest.mark.parametrize(
    ("written", "what", "remedy"),
    [
        (
            "gema-4-31b-fp8",
            "child.yaml:1: extends: no recipe is called `gema-4-31b-fp8` (looked in ./recipes and in"
            " the packaged ones)",
            "nearest: gemma-4-31b-fp8",
        ),
        (
            "family/parnt.yaml",
            "child.yaml:1: extends: family/parnt.yaml: there is no such recipe",
            "nearest: parent.yaml",
        ),
        ("[a, b]", "child.yaml:1: extends: the name or path of one recipe is wanted", ""),
        ("./child.yaml", "child.yaml:1: extends: ./child.yaml is this recipe itself", ""),
        (
            "middle.yaml",
            "child.yaml:1: extends: middle.yaml extends another recipe itself; one level is allowed",
            "extend `family/parent.yaml`, and repeat the keys that child.yaml needs",
        ),
    ],
)
def test_a_parent_that_cannot_be_taken(written: str, what: str, remedy: str) -> None:
    child("", "middle.yaml")
    Path("child.yaml").write_text(f"extends: {written}\n")
    error = error_of(Path("child.yaml"))
    assert (error.what, error.remedy) == (what, remedy)


def test_a_name_finds_what_lies_beside_it_first_and_never_itself() -> None:
    Path("family/mine.yaml").write_text("extends: parent\nsummary: mine\n")
    assert read_recipe(Path("family/mine.yaml")).model == "a/b"
    own = child("", "recipes/gemma-4-31b-fp8.yaml")
    own.write_text("extends: gemma-4-31b-fp8\nport: 9000\n")
    file = load_recipe("gemma-4-31b-fp8")
    assert file.path.samefile(own)
    assert file.parent == shipped("recipes") / "gemma-4-31b-fp8.yaml"
    assert (file.recipe.port, file.recipe.model) == (9000, "google/gemma-4-31B-it")
