"""Which file is read, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.config.find import find_inventory, find_recipe, inventory_to_change, recipe_files, shipped
from cluster.config.inventory import Inventory
from cluster.config.load import (
    choose_recipe,
    load_inventory,
    load_recipe,
    read_dockerfile,
    read_inventory,
    read_mounts,
    read_recipe,
)
from cluster.errors import UsageError

RECIPE = "model: a/b\nimage: x:1\n"


@pytest.fixture(autouse=True)
def empty_desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a current folder with nothing in them."""
    (tmp_path / "home").mkdir()
    (tmp_path / "desk").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLUSTER_INVENTORY", raising=False)
    monkeypatch.chdir(tmp_path / "desk")
    return tmp_path


def write(path: str, text: str = "hosts: {}\n") -> Path:
    file = Path(path).expanduser()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_one_inventory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    write("inventory/example.yaml")
    assert find_inventory() is None
    home = write("~/.config/cluster/inventory.yaml")
    assert find_inventory() == home
    here = write("inventory/default.yaml")
    assert find_inventory() == here
    variable = write("elsewhere/v.yaml")
    monkeypatch.setenv("CLUSTER_INVENTORY", str(variable))
    assert find_inventory() == variable
    option = write("o.yaml")
    assert find_inventory("o.yaml") == option
    assert find_inventory("~/.config/cluster/inventory.yaml") == home
    monkeypatch.setenv("CLUSTER_INVENTORY", "")
    assert find_inventory() == here


def test_a_named_inventory_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    write("inventory/default.yaml")
    write("spark.yaml")
    with pytest.raises(UsageError) as caught:
        find_inventory("sparc.yaml")
    assert (caught.value.what, caught.value.remedy) == (
        "sparc.yaml: there is no such inventory (named by -i)",
        "nearest: spark.yaml",
    )
    monkeypatch.setenv("CLUSTER_INVENTORY", "/no/such/file.yaml")
    with pytest.raises(UsageError, match=r"named by \$CLUSTER_INVENTORY"):
        find_inventory()
    with pytest.raises(UsageError, match="no such user"):
        find_inventory("~nobody-of-that-name/x.yaml")


def test_inventories_are_never_merged() -> None:
    write("~/.config/cluster/inventory.yaml", "hosts: {home: {address: a}}\ndefault_recipe: other\n")
    write("inventory/default.yaml", "hosts: {here: {address: b}}\n")
    file = load_inventory()
    assert list(file.inventory.hosts) == ["here"]
    assert file.inventory.default_recipe == ""


def test_without_an_inventory_there_is_an_empty_one() -> None:
    assert load_inventory().path is None
    assert load_inventory().inventory == Inventory(hosts={})


def test_where_add_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path("~/.config/cluster/inventory.yaml").expanduser()
    assert inventory_to_change() == home
    assert inventory_to_change("new.yaml") == Path("new.yaml")
    here = write("inventory/default.yaml")
    assert inventory_to_change() == here
    monkeypatch.setenv("CLUSTER_INVENTORY", "made.yaml")
    assert inventory_to_change() == Path("made.yaml")


def test_paths_in_an_inventory_start_at_its_folder(empty_desk: Path) -> None:
    text = (
        "hosts: {a: {address: x, identity_file: keys/id, known_hosts_file: ~/known}, b: {address: y}}\n"
        "defaults: {identity_file: /abs/id}\ndefault_recipe: ../r.yaml\n"
    )
    inventory = read_inventory(write("inventory/default.yaml", text))
    folder = Path.cwd() / "inventory"
    assert inventory.hosts["a"].identity_file == str(folder / "keys/id")
    assert inventory.hosts["a"].known_hosts_file == str(empty_desk / "home/known")
    assert inventory.hosts["b"].identity_file == ""
    assert inventory.defaults.identity_file == "/abs/id"
    assert inventory.default_recipe == str(folder / "../r.yaml")


def test_which_recipe_is_the_default() -> None:
    bare, own = Inventory(hosts={}), Inventory(hosts={}, default_recipe="own")
    assert choose_recipe(None, None, bare) == "gemma-4-31b-fp8"
    assert choose_recipe(None, None, own) == "own"
    assert choose_recipe(None, "option", own) == "option"
    assert choose_recipe("word", None, own) == "word"
    assert choose_recipe("same", "same", own) == "same"
    with pytest.raises(UsageError, match="two recipes are named: a and --recipe b"):
        choose_recipe("a", "b", own)


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


def test_a_path_is_a_path() -> None:
    write("recipes/a.yaml", RECIPE)
    write("a.yaml", RECIPE + "summary: here\n")
    assert load_recipe("a.yaml").recipe.summary == "here"
    assert load_recipe("recipes/a.yaml").recipe.summary == ""
    for wanted, what, remedy in (
        ("recipes/b.yaml", "recipes/b.yaml: there is no such recipe", "nearest: a.yaml"),
        ("no/folder/b.yaml", "no/folder/b.yaml: there is no such recipe", ""),
        (
            "gema-4-31b-fp8",
            "no recipe is called `gema-4-31b-fp8` (looked in ./recipes and in the packaged ones)",
            "nearest: gemma-4-31b-fp8",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            load_recipe(wanted)
        assert (caught.value.what, caught.value.remedy) == (what, remedy)


@pytest.mark.parametrize(
    ("mount", "what"),
    [
        ("{target: /x}", "one of source and model_file is wanted"),
        ("{source: r.yaml, model_file: a.py, target: /x}", "one of source and model_file is wanted"),
        ("{model_file: ../a.py, target: /x}", "the path of a file in the model's own repository is wanted"),
        ("{source: r.yaml, target: dist-packages/x.py}", "an absolute path of a file in the container is wanted, or"),
        ("{source: r.yaml, target: site-packages/../x.py}", "an absolute path of a file in the container is wanted"),
    ],
)
def test_a_mount_that_cannot_be(mount: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_recipe(write("r.yaml", f"{RECIPE}mounts: [{mount}]\n"))
    assert what in caught.value.what


def test_a_dockerfile_starts_at_the_recipes_folder_and_ends_in_its_image() -> None:
    path = write("recipes/d.yaml", RECIPE + "dockerfile: own/Dockerfile\n")
    with pytest.raises(UsageError) as caught:
        read_recipe(path)
    folder = Path.cwd() / "recipes/own/Dockerfile"
    assert caught.value.what == f"recipes/d.yaml:3: dockerfile: there is no file `{folder}`"
    for text in ("FROM other:1\n", "FROM $IMAGE\nFROM other:1\n", "# FROM $IMAGE\n"):
        write("recipes/own/Dockerfile", text)
        with pytest.raises(UsageError, match="does not end in an image made of the recipe's own"):
            read_dockerfile(read_recipe(path).dockerfile)
    write("recipes/own/Dockerfile", "ARG IMAGE\nFROM alpine AS tools\nFROM ${IMAGE}\nCOPY --from=tools /x /x\n")
    assert read_dockerfile(read_recipe(path).dockerfile).endswith(b"/x\n")
    assert read_dockerfile("") == b""


def test_mounts_start_at_the_recipes_folder_and_must_be_there() -> None:
    write("recipes/patches/p.py", "patched")
    text = RECIPE + "mounts:\n  - source: patches/p.py\n    target: /opt/p.py\n"
    recipe = read_recipe(write("recipes/m.yaml", text))
    assert recipe.mounts[0].source == str(Path.cwd() / "recipes/patches/p.py")
    assert read_mounts(recipe.mounts) == {"/opt/p.py": b"patched"}
    with pytest.raises(UsageError) as caught:
        read_recipe(write("other/m.yaml", text))
    assert caught.value.what == (f"other/m.yaml:4: mounts.0.source: there is no file `{Path.cwd()}/other/patches/p.py`")


def test_a_file_name_that_cannot_be_a_name() -> None:
    with pytest.raises(UsageError, match=r"name: found `my recipe`; letters, digits"):
        read_recipe(write("recipes/my recipe.yaml", RECIPE))
    assert read_recipe(write("recipes/my recipe.yaml", RECIPE + "name: mine\n")).name == "mine"


def test_a_read_recipe_can_be_hashed_into_a_fingerprint() -> None:
    """The same file gives the same dump, whatever the folder it is read from."""
    first = read_recipe(write("a/r.yaml", RECIPE)).model_dump(mode="json")
    assert read_recipe(write("b/r.yaml", RECIPE)).model_dump(mode="json") == first
