"""Programs of far/ run on machines and in images that are not ours: standard library only, Python 3.10 and later."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FAR = Path(__file__).parents[2] / "cluster" / "far"
PROGRAMS = sorted(FAR.glob("*.py"))
TRAVELS_ALONG = {"rank.py": {"cord"}}  # cord.py lies beside rank.py wherever it runs
BROKEN = ("ImportError", "ModuleNotFoundError", "SyntaxError", "NameError", "AttributeError: module")


def imports(tree: ast.AST) -> Iterator[str]:
    """Top-level names of all modules a program imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield (node.module or "").partition(".")[0]


def test_there_are_programs() -> None:
    assert {"rank.py", "cord.py", "ray_nodes.py", "image.py", "completion.py"} <= {path.name for path in PROGRAMS}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_imports_only_the_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    assert set(imports(tree)) - sys.stdlib_module_names <= TRAVELS_ALONG.get(path.name, set())


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_runs_without_site_and_environment(path: Path, tmp_path: Path) -> None:
    """With no words and no input most of them complain at once; none may miss a module or a name."""
    words = [sys.executable, "-I", "-S", "-W", "error", str(path)]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=tmp_path, timeout=20)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{path.name} does not end when its input does")
    assert not any(word in done.stderr for word in BROKEN), done.stderr
