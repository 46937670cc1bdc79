"""Programs of far/ run on machines and in images that are not ours: standard library only, Python 3.10 and later."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.argv.far import source, text

FAR = Path(__file__).parents[2] / "cluster" / "far"
PROGRAMS = sorted(path.stem for path in FAR.glob("*.py") if path.stem != "prelude")
BROKEN = ("ImportError", "ModuleNotFoundError", "SyntaxError", "NameError", "AttributeError: module")


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all modules a program imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield node.module or ""


def test_there_are_programs() -> None:
    assert {"rank", "cord", "ray_nodes", "image", "completion", "run", "hold"} <= set(PROGRAMS)


@pytest.mark.parametrize("name", [*PROGRAMS, "prelude"])
def test_imports_only_the_standard_library_and_the_prelude(name: str) -> None:
    """But for rank.py: cord.py and guard.py lie beside it wherever it runs; who checks types has longer names."""
    found = set(imports(ast.parse((FAR / f"{name}.py").read_text(), feature_version=(3, 10))))
    foreign = {dotted for dotted in found if dotted.partition(".")[0] not in sys.stdlib_module_names}
    beside = {"cord", "cluster.far.cord", "guard", "cluster.far.guard"}
    assert foreign <= (beside if name == "rank" else {"cluster.far.prelude"})


@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_without_site_and_environment(name: str, far_python: str, tmp_path: Path) -> None:
    """With no words and no input most of them complain at once; none may miss a module or a name."""
    program = tmp_path / f"{name}.py"
    program.write_bytes(source(name))
    if name == "rank":
        for beside in ("cord", "guard"):
            (tmp_path / f"{beside}.py").write_bytes(source(beside))
    words = [far_python, "-I", "-S", "-W", "error", str(program)]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=tmp_path, timeout=20)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{name} does not end when its input does")
    said = (done.stderr.splitlines() or [""])[-1]  # above it stands a traceback, and in that the program
    assert not any(word in said for word in BROKEN), done.stderr


def test_the_load_client_ends_quietly_when_nothing_more_is_asked(far_python: str) -> None:
    program = text("load").replace("IDLE_S = 900.0", "IDLE_S = 0.2")
    client = subprocess.Popen(
        [far_python, "-I", "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert client.stdin
    client.stdin.write(b'{"urls": ["http://127.0.0.1:9"], "api_key_file": null}\n')
    client.stdin.flush()
    assert client.wait(10) == 130
    assert client.communicate()[1] == b""
