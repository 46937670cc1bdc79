"""Every option of every command, in one place. Light to import: the work is imported when it is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Parser = argparse.ArgumentParser


def common(parser: Parser) -> None:
    """Options that every command understands."""
    parser.add_argument("-i", "--inventory", metavar="FILE", help="inventory file (default: $CLUSTER_INVENTORY, …)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout; progress on stderr")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def nodes(parser: Parser, default: str) -> None:
    """Which hosts."""
    parser.add_argument(
        "-n",
        "--nodes",
        metavar="HOST[,HOST…]",
        help=f"hosts, groups or user@host:port; the first is the head ({default})",
    )


def recipe(parser: Parser, *, positional: bool = True) -> None:
    """Which recipe, and changes to it."""
    if positional:
        parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="recipe name or file")
    parser.add_argument("-r", "--recipe", dest="recipe_option", metavar="RECIPE", help="the same as RECIPE")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY.SUB=VALUE", help="change a recipe key; VALUE is YAML"
    )
    parser.add_argument(
        "-e", "--env", action="append", default=[], metavar="KEY=VALUE", help="environment of every rank; "
        "names with TOKEN, KEY, SECRET or PASSWORD travel as files and are shown nowhere"
    )  # fmt: skip


def sizes(parser: Parser, *, short_pp: bool = True) -> None:
    """How the model is spread."""
    parser.add_argument("--tp", "-tp", type=int, metavar="N", help="tensor-parallel size (default: number of hosts)")
    pipeline = ("--pp", "-pp", "--pipeline-parallel") if short_pp else ("--pipeline-parallel",)
    parser.add_argument(*pipeline, dest="pipeline", type=int, default=1, metavar="N", help="pipeline-parallel size")
    parser.add_argument("--solo", action="store_true", help="first host only, --tp 1")
    parser.add_argument("--backend", choices=("ray", "mp"), help="how ranks find each other (default: the recipe's)")


def up(parser: Parser) -> None:
    """Options of `cluster up`."""
    recipe(parser)
    nodes(parser, "default: all hosts of the inventory")
    sizes(parser)
    parser.add_argument("--dry-run", action="store_true", help="print every host's argv in order and change nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask before downloads and replacements")
    parser.add_argument("--allow-socket", action="store_true", help="accept TCP where RDMA was to be had")
    parser.add_argument(
        "--force", action="append", default=[], metavar="CHECK", help="go on although this check says no"
    )
    parser.add_argument(
        "--bind", default="0.0.0.0", metavar="ADDRESS", help="address the API listens on (default: all)"
    )
    parser.add_argument("--api-key-file", metavar="FILE", help="the API demands the key in this file")
    parser.add_argument(
        "--hub-token-file", metavar="FILE", help="hub token for downloads (default: $HF_TOKEN, its file)"
    )
    common(parser)


def down(parser: Parser) -> None:
    """Options of `cluster down`."""
    nodes(parser, "default: the hosts of what runs")
    parser.add_argument("--dry-run", action="store_true", help="print every host's argv in order and change nothing")
    common(parser)


def status(parser: Parser) -> None:
    """Options of `cluster status`."""
    nodes(parser, "default: all hosts of the inventory")
    common(parser)


def logs(parser: Parser) -> None:
    """Options of `cluster logs`."""
    nodes(parser, "default: the hosts of what runs")
    parser.add_argument("--tail", type=int, default=200, metavar="N", help="lines a rank (default: 200)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as lines come")
    common(parser)


def execute(parser: Parser) -> None:
    """Options of `cluster exec`; the command comes after `--`."""
    nodes(parser, "default: all hosts of the inventory")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="seconds a host may take (default: 60)")
    common(parser)


def bench(parser: Parser) -> None:
    """Options of `cluster bench`."""
    recipe(parser, positional=False)
    nodes(parser, "default: the hosts of what runs")
    parser.add_argument("--depth", type=int, nargs="+", metavar="N", help="tokens of context before the prompt")
    parser.add_argument("--pp", "-pp", type=int, nargs="+", metavar="N", help="prompt tokens")
    parser.add_argument("--tg", "-tg", type=int, nargs="+", metavar="N", help="generated tokens")
    parser.add_argument("--runs", type=int, metavar="N", help="repetitions of each row")
    parser.add_argument("--concurrency", type=int, nargs="+", metavar="N", help="requests at the same time")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the prompts (default: 1)")
    parser.add_argument("--base-url", metavar="URL", help="measure this server, from this machine")
    parser.add_argument("--model", metavar="NAME", help="served model name (default: what the server says)")
    parser.add_argument("--api-key-file", metavar="FILE", help="key of the API")
    parser.add_argument("--results", metavar="DIR", help="where results are kept (default: ./results if it exists)")
    common(parser)


def recipes(parser: Parser) -> None:
    """Options of `cluster recipes`."""
    _configure("recipes", parser)


def inventory(parser: Parser) -> None:
    """Options of `cluster inventory`."""
    _configure("inventory", parser)


def lab(parser: Parser) -> None:
    """Options of `cluster lab`."""
    _configure("lab", parser)


def _configure(module: str, parser: Parser) -> None:
    """Commands with sub-commands keep their options beside them."""
    from importlib import import_module

    import_module(f"cluster.actions.{module}").configure(parser)


@dataclass(frozen=True)
class Command:
    """One row of the table in `cli.py`."""

    name: str
    summary: str
    configure: Callable[[Parser], Any]
    target: str
    example: str
