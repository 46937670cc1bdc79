"""Every `cluster …` that docs, recipes and --help show can be typed: its options, its recipes, the keys it sets."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from loops import each

from cluster.bench.series import SIZES, parse_vary
from cluster.cli.main import COMMANDS, build_parser, parse
from cluster.config.find import DEFAULT_RECIPE, recipe_files
from cluster.config.recipe import final_recipe, load_recipe

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/*.yaml")}
    - {ROOT / "docs/cli.md", ROOT / "docs/errors.md"}
)
NAMES = "|".join(command.name for command in COMMANDS)
TYPED = re.compile(rf"[#$\s]*(cluster (?:{NAMES})\b.*)")
QUOTED = re.compile(rf"`(cluster (?:{NAMES}) [^`]+)`")
OWN_RECIPE = re.compile(r"[A-Z]+|.*[/<].*|.*\.yaml|lab:.*|toy|mine")
"""What stands for a recipe that is not packaged."""


def shown() -> Iterator[tuple[str, str]]:
    """(place, command) of everything shown."""
    yield from (("--help", command.example) for command in COMMANDS)
    yield "--help", (build_parser().epilog or "").removeprefix("example: ")
    for page in PAGES:
        text = re.sub(r"\\\n\s*(# )?", "", page.read_text())
        lines = [found[1] for line in text.splitlines() if (found := TYPED.fullmatch(line)) and "`" not in line]
        for line in (*lines, *QUOTED.findall(" ".join(text.split()))):
            if "…" not in line.replace("=…", "=1"):
                yield str(page.relative_to(ROOT)), line


def commands(line: str) -> Iterator[list[str]]:
    """The commands of a line of shell, without what a substitution would give."""
    shell = shlex.shlex(re.sub(r"\$\([^)]*\)", "", line), posix=True, punctuation_chars=True)
    shell.whitespace_split = True
    words: list[str] = []
    for word in (*shell, ";"):
        if set(word) <= set("&|;"):
            if words[:1] == ["cluster"]:
                yield words[1:]
            words = []
        else:
            words.append(word)


def wrong(words: list[str]) -> str:
    """What of a command cannot be typed, or does nothing; empty when it is right."""
    try:
        args = parse(words)
    except SystemExit as left:
        return f"exit {left.code}"
    given = getattr(args, "recipe", None) or getattr(args, "recipe_option", None)
    names = [name for name in (given if isinstance(given, list) else [given]) if name]
    for name in names:
        if not OWN_RECIPE.fullmatch(name) and name not in recipe_files():
            return f"no recipe {name}"
    name = names[0] if names and names[0] in recipe_files() else DEFAULT_RECIPE
    return "; ".join(keys_wrong(args, name))


def keys_wrong(args: argparse.Namespace, name: str) -> Iterator[str]:
    """Keys that the recipe does not know, and parts of a flag that it does not give."""
    recipe = load_recipe(name).recipe
    sets = list(getattr(args, "set", None) or [])
    varied = parse_vary(getattr(args, "vary", None) or ())
    sets += [f"{key}={values[0]}" for key, values in varied.items() if key not in SIZES]
    try:
        final_recipe(recipe, sets)
    except Exception as error:
        yield str(error)
    for word in sets:
        first, *path = word.partition("=")[0].removeprefix("vllm.").split(".")
        if word.startswith("vllm.") and path and first.replace("_", "-") not in recipe.vllm:
            yield f"{name} gives no {first}, so {word} stands alone"


@each("place, line", sorted(set(shown())))
def test_a_command_that_is_shown_can_be_typed(place: str, line: str) -> None:
    assert [found for words in commands(line) if (found := wrong(words))] == []


def test_the_check_finds_what_cannot_be_typed() -> None:
    assert wrong(["sweep", "gemma-4-26b-mtp", "--vary", "port=1,2"]) == "no recipe gemma-4-26b-mtp"
    assert "stands alone" in wrong(["sweep", "--vary", "vllm.speculative_config.num_speculative_tokens=2,3"])
    assert "speculative_config" in wrong(["up", "gemma-4-26b-a4b-fp8", "--set", "speculative_config.n=2"])
    assert wrong(["up", "--no-such-option"]) == "exit 2"
    assert wrong(["sweep", "gemma-4-26b-a4b-fp8-mtp", "--vary", "tp=1,2"]) == ""
    assert {place for place, _ in shown()} >= {"README.md", "docs/reports.md", "docs/runbooks/it-is-slow.md", "--help"}


def test_files_that_pages_name_exist() -> None:
    """`spark/memory.py`, `tests/act/test_steps.py`: a page that names a file is changed with it."""
    rooms = {path.name for path in (ROOT / "cluster").iterdir() if path.is_dir()} | {"think", "act", "wire"}
    places = (ROOT, ROOT / "cluster", ROOT / "tests")
    lost = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in re.findall(r"`((?:\w+/)+[\w*]+\.(?:py|yaml))`", page.read_text())
        if name.split("/")[0] in {*rooms, "cluster", "tests", "scripts"}
        and not any(list(place.glob(name)) for place in places)
    ]
    assert lost == []


def test_the_codes_that_pages_show_are_codes_of_errors() -> None:
    """docs/errors.md is written from the code; a page that shows an error line shows one of its codes."""
    docs = Path(__file__).parents[2] / "docs"
    codes = set(re.findall(r"^\| `([a-z0-9-]+)` \|", (docs / "errors.md").read_text(), re.MULTILINE))
    shown = {
        code
        for page in docs.rglob("*.md")
        for code in re.findall(r"error: [^\n`]*\[([a-z0-9]+(?:-[a-z0-9]+)*)\]", page.read_text())
    }
    checks = set(re.findall(r"`([a-z-]+)`", (docs / "failures.md").read_text()))
    assert "interrupted" in codes
    assert shown <= codes | checks


def test_a_code_is_shown_with_its_own_words() -> None:
    """Also where the message was given a name beside another: `what, remedy = "…", "…"`."""
    page = (ROOT / "docs/errors.md").read_text()
    assert "| `lab-fault-unknown` | 2 | lab/lab.py | `unknown fault …; did you mean …?` |" in page
    assert "`… and … are …`" in next(line for line in page.splitlines() if line.startswith("| `host-named-twice`"))
