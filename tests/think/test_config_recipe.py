"""Which recipe is read and what it is made of: `extends`, files beside it, --set, -e, and the command's documents."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from config_tools import document, refusal, write
from loops import each

from cluster.cli.main import main
from cluster.cli.recipes import problems_of
from cluster.config.find import find_recipe, recipe_files, shipped
from cluster.config.inventory import Inventory
from cluster.config.recipe import (
    Recipe,
    choose_recipe,
    final_recipe,
    load_recipe,
    read_dockerfile,
    read_mounts,
    read_recipe,
    split_env,
)
from cluster.config.written import parse_document, validate
from cluster.errors import UsageError

RECIPE = "model: a/b\nimage: x:1\n"
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
def family(desk: Path) -> None:
    """A parent and its patch in a folder of their own."""
    write("family/parent.yaml", PARENT)
    write("family/patch.py", "patched")


def child(text: str, file: str = "child.yaml") -> Path:
    return write(file, "extends: family/parent.yaml\n" + text)


def error_of(path: Path) -> UsageError:
    return refusal(read_recipe, path)


def test_which_recipe_is_the_default() -> None:
    bare, own = Inventory(hosts={}), Inventory(hosts={}, default_recipe="own")
    given = [(None, None, bare), (None, None, own), (None, "option", own), ("word", None, own), ("same", "same", own)]
    assert [choose_recipe(*one) for one in given] == ["gemma-4-31b-fp8", "own", "option", "word", "same"]
    assert refusal(choose_recipe, "a", "b", own).code == "recipe-conflict"


def test_a_name_is_looked_up_here_then_among_the_packaged_ones() -> None:
    packaged = find_recipe("gemma-4-31b-fp8")
    assert packaged.parent == shipped("recipes")
    here = write("recipes/gemma-4-31b-fp8.yaml", RECIPE)
    assert find_recipe("gemma-4-31b-fp8").resolve() == here.resolve()
    assert recipe_files()["gemma-4-31b-fp8"].resolve() == here.resolve()
    write("recipes/mine.yml", RECIPE)
    write("recipes/.hidden.yaml", RECIPE)
    assert load_recipe("mine").recipe.name == "mine"
    assert ".hidden" not in recipe_files()


@pytest.mark.parametrize("words", ["list", "show", "check", "show gemma-4-31b-fp8"])
def test_a_folder_of_recipes_that_cannot_be_read_is_told(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not only packaged ones, as if there were no others."""
    shutil.rmtree("recipes", ignore_errors=True)
    Path("recipes").write_text("no folder")
    assert main(["recipes", *words.split()]) == 2
    assert "error: recipes: cannot be read: Not a directory [file-unreadable]" in capsys.readouterr().err


def test_a_path_is_a_path() -> None:
    write("recipes/a.yaml", RECIPE)
    write("a.yaml", RECIPE + "summary: here\n")
    assert load_recipe("a.yaml").recipe.summary == "here"
    assert load_recipe("recipes/a.yaml").recipe.summary == ""


def test_a_dockerfile_starts_at_the_recipes_folder_and_ends_in_its_image() -> None:
    path = write("recipes/d.yaml", RECIPE + "dockerfile: own/Dockerfile\n")
    error = error_of(path)
    assert error.code == "recipe-file-not-found"
    assert error.what.startswith("recipes/d.yaml:3: dockerfile: ")
    for text in ("FROM other:1\n", "FROM $IMAGE\nFROM other:1\n", "# FROM $IMAGE\n"):
        write("recipes/own/Dockerfile", text)
        assert refusal(read_dockerfile, read_recipe(path).dockerfile).code == "dockerfile-base"
    write("recipes/own/Dockerfile", "ARG IMAGE\nFROM alpine AS tools\nFROM ${IMAGE}\nCOPY --from=tools /x /x\n")
    assert read_dockerfile(read_recipe(path).dockerfile).endswith(b"/x\n")
    assert read_dockerfile("") == b""


def test_mounts_start_at_the_recipes_folder_and_must_exist() -> None:
    write("recipes/patches/p.py", "patched")
    text = RECIPE + "mounts:\n  - source: patches/p.py\n    target: /opt/p.py\n"
    recipe = read_recipe(write("recipes/m.yaml", text))
    assert recipe.mounts[0].source == str(Path.cwd() / "recipes/patches/p.py")
    assert read_mounts(recipe.mounts) == {"/opt/p.py": b"patched"}
    assert error_of(write("other/m.yaml", text)).what.startswith("other/m.yaml:4: mounts.0.source: ")
    Path("recipes/patches/p.py").unlink()
    assert refusal(read_mounts, recipe.mounts).code == "file-unreadable"


def test_a_file_name_that_is_not_a_name() -> None:
    assert error_of(write("recipes/my recipe.yaml", RECIPE)).code == "value-invalid"
    assert read_recipe(write("recipes/my recipe.yaml", RECIPE + "name: mine\n")).name == "mine"
    assert read_recipe(write("recipes/plain.yaml", RECIPE + "name:\n")).name == "plain"


def test_scalars_and_lists_replace_and_mappings_merge() -> None:
    changes = "{max_model_len: 8192, speculative-config: {num_speculative_tokens: 2}, seed: 1}"
    text = f"summary: child\nvllm: {changes}\nenv: {{LEVEL: DEBUG}}\nproblems: [{{what: a new one}}]\n"
    recipe = read_recipe(child(text))
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


def test_a_message_names_the_file_that_is_wrong() -> None:
    assert error_of(child("vlm: {seed: 1}\n")).what.startswith("child.yaml:2: unknown key `vlm`")
    write("family/parent.yaml", PARENT + "port: x\n")
    assert error_of(child("")).what.startswith("family/parent.yaml:14: port: ")
    write("family/parent.yaml", PARENT.replace("patch.py", "no.py"))
    assert error_of(child("")).what.startswith("family/parent.yaml:11: mounts.0.source: ")


@each("written", ["[a, b]", "./child.yaml"])
def test_a_parent_that_cannot_be_used(written: str) -> None:
    error = error_of(write("child.yaml", f"extends: {written}\n"))
    assert error.code == "extends-invalid"
    assert error.what.startswith("child.yaml:1: extends: ")


def test_a_name_finds_what_lies_beside_it_first_and_never_itself() -> None:
    Path("family/mine.yaml").write_text("extends: parent\nsummary: mine\n")
    assert read_recipe(Path("family/mine.yaml")).model == "a/b"
    own = child("", "recipes/gemma-4-31b-fp8.yaml")
    own.write_text("extends: gemma-4-31b-fp8\nport: 9000\n")
    file = load_recipe("gemma-4-31b-fp8")
    assert file.path.samefile(own)
    assert file.parent == shipped("recipes") / "gemma-4-31b-fp8.yaml"
    assert (file.recipe.port, file.recipe.model) == (9000, "google/gemma-4-31B-it")


SET = """
name: r
model: a/b
image: x:1
vllm: {max_model_len: 4096, gpu-memory-utilization: 0.85, speculative-config: {method: mtp, num: 4}}
env: {A: 1}
memory: {per_host_gib: {1: 100, 2: 60}}
"""


def recipe() -> Recipe:
    return validate(Recipe, parse_document(SET, "r.yaml"))


@each(
    "text, path, value",
    [
        ("port=8001", "port", 8001),
        ("vllm.max_model_len=32768", "vllm.max-model-len", 32768),
        ("max_model_len=32768", "vllm.max-model-len", 32768),
        ("vllm.kv-cache-dtype='1'", "vllm.kv-cache-dtype", "1"),
        ("speculative_config.num=2", "vllm.speculative-config", {"method": "mtp", "num": 2}),
        ("vllm.speculative-config={method: x}", "vllm.speculative-config", {"method": "x"}),
        ("vllm.new.deep.key=1", "vllm.new", {"deep": {"key": 1}}),
        ("env.A=1.10", "env.A", "1.10"),
        ("bench.tg=[16, 32]", "bench.tg", [16, 32]),
        ("memory.per_host_gib.2=50", "memory.per_host_gib", {1: 100.0, 2: 50.0}),
        ("summary='a: b = c'", "summary", "a: b = c"),
    ],
)
def test_a_value_is_set(text: str, path: str, value: object) -> None:
    found: object = final_recipe(recipe(), [text])
    for part in path.split(".", 1):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    assert found == value


def test_an_empty_value_removes_the_key() -> None:
    changed = final_recipe(recipe(), ["vllm.gpu-memory-utilization=", "env.A=null", "memory="])
    assert "gpu-memory-utilization" not in changed.vllm
    assert (changed.env, changed.memory.per_host_gib) == ({}, {})


def test_sets_apply_in_order() -> None:
    assert final_recipe(recipe(), []) == recipe()
    assert final_recipe(recipe(), ["port=1", "port=2"]).port == 2


@each(
    "text, code, place, named",
    [
        ("a..b=1", "set-invalid", "--set a..b: ", ""),
        ("rnus=1", "unknown-key", "--set rnus: ", "`bench.runs`"),
        ("frobnicate=1", "unknown-key", "--set frobnicate: ", "vllm.FLAG=VALUE"),
        ("env.A.x=1", "set-invalid", "--set env.A.x: ", "`A`"),
        ("mounts.0.source=x", "value-invalid", "--set: mounts: ", "a mapping"),
        ("vllm.--x=1", "set-invalid", "--set vllm.--x: ", "`--x`"),
        ("needs.vllm=>=0.24", "yaml-invalid", "--set needs.vllm:1:2: ", "--set 'needs.vllm=\">=0.24\"'"),
        ("env.MY_TOKEN=abc", "value-invalid", "--set: env.MY_TOKEN: ", "-e MY_TOKEN"),
        ("model=", "key-missing", "--set: ", "`model`"),
    ],
)
def test_what_cannot_be_set(text: str, code: str, place: str, named: str) -> None:
    error = refusal(final_recipe, recipe(), [text])
    assert (error.code, error.what.startswith(place)) == (code, True)
    assert named in error.what + error.remedy


def test_secrets_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "from-the-environment")
    secret = {"my_token": "t1", "OPENAI_API_KEY": "t2", "DbPassword": "t3", "X_SECRET": "t4"}
    words = ["A=1", "B=x=y", "E=", "HF_TOKEN", "TOKENIZERS_PARALLELISM=false", "A=2"]
    variables = split_env([*words, *(f"{name}={value}" for name, value in secret.items())])
    assert variables.plain == {"A": "2", "B": "x=y", "E": "", "TOKENIZERS_PARALLELISM": "false"}
    assert variables.secret == secret | {"HF_TOKEN": "from-the-environment"}
    assert "t1" not in repr(variables)


@each(
    "word, code",
    [
        ("NOT_SET_ANYWHERE", "variable-not-set"),
        ("A B=hunter2", "variable-invalid"),
        ("=hunter2", "variable-invalid"),
        ("A=hunter2\x00", "variable-invalid"),
    ],
)
def test_what_is_not_a_variable(word: str, code: str) -> None:
    error = refusal(split_env, [word])
    assert error.code == code
    assert "hunter2" not in f"{error.what}{error.remedy}"


@each("text, at", [("url: ftp://a, seen: 2026-11-28", "url"), ("url: https://a, seen: 28.11.2026", "seen")])
def test_a_source_has_an_address_and_a_day(text: str, at: str) -> None:
    assert f"sources.0.{at}: expected " in error_of(write("s.yaml", f"{RECIPE}sources: [{{{text}}}]\n")).what


@each(
    "text, named",
    [
        ("vllm: {tp: 2}", "vllm.tp: ..., --tp"),
        ("vllm: {distributed-executor-backend: mp}", "vllm.distributed-executor-backend: ..., --backend"),
        ("vllm: {allowed-origins: []}", "vllm.allowed-origins..., empty"),
        ("vllm: {max-model-len: 128x}", "vllm.max-model-len: ..., 65536"),
        ("vllm: {gpu-memory-utilization: 1.8}", "vllm.gpu-memory-utilization: ..., at most 1"),
        ("name: other", "name: ..., `r`"),
        ("parameters_b: 4\nactive_parameters_b: 31", "active_parameters_b: ..., at most parameters_b, which is 4"),
        ("revision: ''", "revision: ..., tag or commit"),
        ("needs: {vllm: '>=0.19,<0.2'}", "needs.vllm: ..., no version"),
        ("needs: {vllm: '>0.2,<0.2'}", "needs.vllm: ..., no version"),
        ("needs: {vllm: '==0.3,<0.2'}", "needs.vllm: ..., no version"),
        ("fork_flags: [gdn-decode-kernel]", "fork_flags: ..., `gdn-decode-kernel`"),
    ],
)
def test_what_check_finds(text: str, named: str) -> None:
    path = write("r.yaml", f"{RECIPE}{text}\n")
    (found,) = problems_of(path)
    begin, _, rest = named.partition("..., ")
    assert found.removeprefix(str(path)).lstrip(":0123456789 ").startswith(begin)
    assert rest in found


@pytest.fixture
def two_recipes() -> None:
    """One that can be used and is the default, and one that is broken."""
    write("recipes/mine.yaml", RECIPE + "summary: mine\n")
    write("recipes/doubtful.yaml", RECIPE + "unverified: [never started]\n")
    write("recipes/broken.yaml", "model: a/b\n")
    write("inventory/default.yaml", "default_recipe: mine\n")


def test_recipes_list_has_broken_ones_too(two_recipes: None, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "recipes", "list")
    rows = {row["name"]: row for row in found["recipes"]}
    assert found["default"] == "mine"
    assert rows["mine"]["where"] == "./recipes"
    assert rows["gemma-4-31b-fp8"]["where"] == "packaged"
    assert "missing key `image`" in rows["broken"]["error"]
    assert [row["name"] for row in rows.values() if "never started" in row.get("unverified", ())] == ["doubtful"]


def test_recipes_list_marks_what_is_not_verified(two_recipes: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "list"]) == 0
    rows = capsys.readouterr().out.splitlines()
    marks = {row.split()[0]: row.split()[1] for row in rows if row.startswith(("mine", "doubtful"))}
    assert marks == {"mine": "*", "doubtful": "?"}
    assert rows[-1].startswith("? is not verified")


def test_recipes_show_takes_the_default_and_sets(two_recipes: None, capsys: pytest.CaptureFixture[str]) -> None:
    shown = document(capsys, "recipes", "show", "--set", "vllm.max_model_len=5")
    assert (shown["path"], shown["recipe"]["name"]) == ("recipes/mine.yaml", "mine")
    assert shown["recipe"]["vllm"] == {"max-model-len": 5}


@each("range_", [">=0.19,<0.34", ">=0.2,<=0.2", "==0.32.*", "~=0.19", "==0.32", "<1", "!=0.30", ">0.1,<0.2", ""])
def test_ranges_with_versions_in_them(range_: str) -> None:
    file = write("r.yaml", f"{RECIPE}needs: {{vllm: '{range_}'}}\n")
    assert read_recipe(file).needs.vllm == range_
