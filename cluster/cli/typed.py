"""Command lines as values: the words that would give the same arguments."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator
from typing import Any

from cluster.cli.options import Parser
from cluster.config.secrets import is_secret, redact

Configure = Callable[[Parser], Any]


def typed(command: str, configure: Configure, args: object) -> str:
    """A command line that is read as these options, attributes named as `dest`; values of secrets are left out."""
    parser = Parser(add_help=False)
    configure(parser)
    words = ["cluster", command, *(word for action in parser._actions for word in _words(action, args))]
    after = getattr(args, "words", None) or []
    return shlex.join(redact([*words, "--", *after] if after else words, ()))


def _words(action: argparse.Action, args: object) -> Iterator[str]:
    """The words of one option or argument; none when it has its default value."""
    value = getattr(args, action.dest, action.default)
    if value == action.default or action.dest == "json":
        return
    option = max(action.option_strings, key=len, default="")
    if action.dest == "env":
        value = [_without_secret(word) for word in value]
    if isinstance(action, argparse._AppendAction):
        for one in value:
            yield from (option, str(one))
        return
    if option:
        yield option
    if action.nargs != 0:
        yield from map(str, value if isinstance(value, list | tuple) else [value])


def _without_secret(word: str) -> str:
    """`-e TOKEN=value` as `-e TOKEN`, which takes the value from the environment."""
    name, _, value = word.partition("=")
    return name if is_secret(name, value) else word
