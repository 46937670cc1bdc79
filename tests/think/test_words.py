"""Plain words of the field: what string literals may not say, names that explain nothing, a code for every error."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "cluster"
ELSEWHERE = {"inside", "platform", "quick", "model"}  # the lab's images and models are named for their content
FILES = sorted(path for path in PACKAGE.rglob("*.py") if not ELSEWHERE & set(path.parts))

INSTEAD = {
    r"\bto be had\b": "available",
    r"\banew\b": "again",
    r"\b(of|is|are) ours\b": "managed by cluster, a deployment",
    r"\bstranger'?s?\b": "unmanaged, another program's",
    r"\b(is|was|are) told\b": "prints, reports",
    r"\b(says|say|said) no\b": "fails, failed",
    r"\bin the end\b": "finally",
    r"\blets? go\b": "unloads, releases",
    r"\bput back\b": "rolled back",
    r"\bthe whole\b": "the complete",
    r"\bis no (key|host|recipe|file|number|size|option)\b": "unknown key, not a number, host not found",
    r"\bnearest: ": "did you mean",
    r"(?i)\bdo not believe\b": "INVALID",
    r"\b(tells?|hears?|heard|wants?)\b": "prints, reports, returns, requires",
    r"\bwithout a word\b": "without an error message",
    r"\bas good as\b": "nearly",
    r"\bgo on although\b": "ignore",
    r"\bnothing was changed\b": "no changes made",
}
"""What error lines, findings and help may not say, as a regular expression, and what they say instead."""

FROZEN = {"stranger", "gpu-stranger"}
"""Names of checks and of the lab's faults, which scripts use."""

RIDDLES = {"told", "heard", "again", "carry", "anew", "standing", "belief", "back", "put_back", "began"}
"""Names that explain nothing, of modules, functions, classes, fields and variables."""

ERRORS = re.compile(r"(Usage|Unreachable|Silent|ConnectionLost|Refused|Locked|Partial|Cluster|Written)Error$")
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def of(path: Path, node: ast.AST) -> str:
    """file:line as an editor takes it."""
    return f"{path}:{getattr(node, 'lineno', 1)}"


def docstrings(tree: ast.AST) -> set[int]:
    """Ids of the nodes that are docstrings, of fields too: a bare string is no message."""
    return {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def dialect(path: Path) -> Iterator[str]:
    """String literals of a file that say what INSTEAD forbids."""
    tree = ast.parse(path.read_text())
    skipped = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            for words, instead in INSTEAD.items() if node.value not in FROZEN else ():
                if found := re.search(words, node.value):
                    yield f"{of(path, node)}: {found[0]!r}: {instead}"


def riddles(path: Path) -> Iterator[str]:
    """Names of a file that are in RIDDLES."""
    if path.stem in RIDDLES:
        yield of(path, ast.Pass())
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                names = [name]
            case ast.Name(id=name, ctx=ast.Store()):
                names = [name]
            case _:
                names = []
        yield from (f"{of(path, node)}: {name}" for name in names if name.strip("_").lower() in RIDDLES)


def without_code(path: Path) -> Iterator[str]:
    """Errors made without `code=`, or with a literal that is none."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ERRORS.search(getattr(node.func, "id", getattr(node.func, "attr", ""))):
            given = [word.value for word in node.keywords if word.arg in ("code", None)]
            if not given or any(isinstance(one, ast.Constant) and not CODE.fullmatch(str(one.value)) for one in given):
                yield of(path, node)


@pytest.mark.parametrize("found", [dialect, riddles, without_code])
def test_words_names_and_codes(found: Callable[[Path], Iterator[str]]) -> None:
    assert not [line for path in FILES for line in found(path)]


def test_each_kind_is_found(tmp_path: Path) -> None:
    """The test above is able to fail."""
    file = tmp_path / "sample.py"
    file.write_text('def told(x):\n    "ours is told"\n    raise UsageError("4 GiB are to be had")\n')
    assert [len(list(found(file))) for found in (dialect, riddles, without_code)] == [1, 1, 1]
