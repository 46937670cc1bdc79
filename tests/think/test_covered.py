"""What a user can type or write is in some test, and a number that a page quotes is the code's."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cli.main import build_parser, main, parse
from cluster.config.inventory import Inventory
from cluster.config.recipe import Recipe
from cluster.config.written import keys
from cluster.hosts.fleet import HOST_SILENCE_S
from cluster.hosts.lock import LOCK_S

ROOT = Path(__file__).resolve().parents[2]
TESTS = "\n".join(
    path.read_text(encoding="utf-8", errors="replace")
    for path in (ROOT / "tests").rglob("*")
    if path.suffix in (".py", ".txt", ".json", ".jsonl", ".yaml") and path != Path(__file__)
)


PARSED = {
    "--concurrency 1 4": (["bench"], "concurrency", [1, 4]),
    "--natural-stop": (["bench"], "natural_stop", True),
    "--full": (["probe"], "full", True),
    "--pipeline-parallel 2": (["scaling"], "pipeline", 2),
    "--purge": (["lab", "down"], "purge", True),
}
"""Options that other tests give as values: the command before them, the field, and its value."""

QUOTED = {
    "docs/failures.md": {"within {} s, and the next `up`": LOCK_S, "unreachable for {} s: ": HOST_SILENCE_S},
    "docs/runbooks/it-hangs.md": {"by itself within {} s after its operator": LOCK_S},
    "docs/decisions/13-the-lock.md": {"any silent host ({} s": HOST_SILENCE_S, "for up to {} s more": LOCK_S},
    "CHANGELOG.md": {"silence of {} s ends": HOST_SILENCE_S},
}
"""Constants in pages: the words around each, with a {} where it is."""


def options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, ...]]:
    """The names of each option of a parser and of those below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from options(inner)
        elif action.option_strings and action.help != argparse.SUPPRESS:
            yield tuple(action.option_strings)


def test_every_option_is_in_a_test(capsys: pytest.CaptureFixture[str]) -> None:
    for words, (command, field, value) in PARSED.items():
        assert getattr(parse([*command, *words.split()]), field) == value
    with pytest.raises(SystemExit):
        main(["--print-completion", "bash"])
    assert "complete" in capsys.readouterr().out
    given = TESTS + " ".join(PARSED) + " --print-completion"
    found = set(options(build_parser()))
    assert len(found) > 50
    assert not [one for one in found if not any(re.search(rf"(?<![\w-]){name}(?![\w-])", given) for name in one)]


def test_every_key_is_in_a_test() -> None:
    names = {key.path.rpartition(".")[2].rstrip("[]") for model in (Inventory, Recipe) for key in keys(model)}
    assert len(names) > 50
    assert [one for one in sorted(names - {"NAME"}) if not re.search(rf"\b{one}\b", TESTS)] == []


@pytest.mark.parametrize("page", QUOTED)
def test_a_number_that_a_page_quotes_is_the_codes(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert [words for words, value in QUOTED[page].items() if words.format(f"{value:g}") not in text] == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("inventory add s9 --port 9 127.0.0.9", {"name": "s9", "port": "9", "address": "127.0.0.9"}),
        ("inventory add s9 127.0.0.9 -y", {"name": "s9", "yes": True, "address": "127.0.0.9"}),
        ("report a.json -o z.html b.json", {"files": ["a.json", "b.json"], "output": ["z.html"]}),
        ("recipes check a --json b", {"recipes": ["a", "b"], "json": True}),
        ("explain a --json - ", {"files": ["a", "-"], "json": True}),
        ("up --tp 2 toy -e A=B --yes", {"recipe": "toy", "tp": 2, "env": ["A=B"]}),
        ("report", {"files": []}),
    ],
)
def test_options_stand_between_other_words(words: str, found: dict[str, object]) -> None:
    args = vars(parse(words.split()))
    assert {key: args[key] for key in found} == found


@pytest.mark.parametrize("words", ["recipes check --nope", "status extra", "up a b", "inventory add s9 --nope"])
def test_unknown_words_are_told_with_the_usage_of_their_command(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words.split())
    command = " ".join(words.split()[:1] if words.split()[0] in ("status", "up") else words.split()[:2])
    err = capsys.readouterr().err
    assert err.startswith(f"usage: cluster {command} ")
    assert f"unrecognized arguments: {words.split()[-1]}" in err
