"""Every option of every command, in one place. Light to import: the work is imported when it is asked for."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, Self

LISTED = " (default: see `cluster recipes list`)"


class Parser(argparse.ArgumentParser):
    """A parser that refuses empty words, as a variable gives that is not set; so do the parsers of its commands."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register("type", None, _filled)

    def add_subparsers(self, **options: Any) -> Any:
        """Commands, each with all its words: their own parsers say which of them is empty."""
        commands = super().add_subparsers(**options)
        commands.type = str
        return commands


def _filled(text: str) -> str:
    """The value of an option or argument that has no other type."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty")
    return text


def common(parser: Parser) -> None:
    """Options that every command understands."""
    parser.add_argument(
        "-i",
        "--inventory",
        metavar="FILE",
        help="inventory file (default: $CLUSTER_INVENTORY, else "
        "./inventory/default.yaml, else ~/.config/cluster/inventory.yaml)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout; progress on stderr")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def nodes(parser: Parser, default: str = "all hosts of the inventory", *, rank_order: bool = False) -> None:
    """Which hosts."""
    first = "; the first is the head" if rank_order else ""
    parser.add_argument(
        "-n", "--nodes", metavar="HOST[,HOST…]", help=f"hosts, groups or user@host:port{first} (default: {default})"
    )


def recipe(parser: Parser, default: str = LISTED) -> None:
    """Which recipe, changes to it, and the environment of what it starts."""
    chosen(parser, default)
    parser.add_argument(
        "-e",
        "--env",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="environment of every rank; without "
        "=VALUE it is taken from yours; secrets (by name: KEY, TOKEN, PASSWD …) travel as files and are shown nowhere",
    )


def chosen(parser: Parser, default: str = LISTED) -> None:
    """Which recipe, and changes to it."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help=f"recipe name or file{default}")
    parser.add_argument("-r", "--recipe", dest="recipe_option", metavar="RECIPE", help="the same as RECIPE")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY.SUB=VALUE", help="change a recipe key; VALUE is YAML"
    )


def sizes(parser: Parser, *, short_pp: bool = True) -> None:
    """How the model is spread."""
    parser.add_argument("--tp", "-tp", type=int, metavar="N", help="tensor-parallel size (default: hosts ÷ pp)")
    pipeline = ("--pp", "-pp", "--pipeline-parallel") if short_pp else ("--pipeline-parallel",)
    parser.add_argument(*pipeline, dest="pipeline", type=int, default=1, metavar="N", help="pipeline size (default: 1)")
    parser.add_argument("--solo", action="store_true", help="first host only, --tp 1")
    parser.add_argument(
        "--backend",
        choices=("ray", "mp"),
        help="how ranks find each other (default: the recipe's; one host alone uses neither unless ray is given)",
    )


def starting(parser: Parser) -> None:
    """How everything that starts a deployment goes about it; `scaling` and `sweep` hand these on to `up`."""
    parser.add_argument("--dry-run", action="store_true", help="print every host's argv in order and change nothing")
    parser.add_argument(
        "-y",
        "--yes",
        action="store_true",
        help="do not ask before downloads and replacements; without a terminal, downloads need it",
    )
    parser.add_argument("--allow-socket", action="store_true", help="accept TCP where RDMA is available")
    parser.add_argument(
        "--force",
        action="append",
        default=[],
        metavar="CHECK",
        help="ignore this failed check; its name stands in the error",
    )
    parser.add_argument(
        "--bind", default="0.0.0.0", metavar="ADDRESS", help="address the API listens on (default: all)"
    )
    parser.add_argument("--api-key-file", metavar="FILE", help="the API demands the key in this file")
    hub_token(parser)


def hub_token(parser: Parser) -> None:
    """The key to models that are not open to everybody."""
    parser.add_argument(
        "--hub-token-file",
        metavar="FILE",
        help="hub token for downloads (default: $HF_TOKEN, else the file that `hf auth login` writes)",
    )


def fabric_test(parser: Parser) -> None:
    """Bandwidth, only when it is asked for: it is load."""
    parser.add_argument(
        "--fabric-test",
        action="store_true",
        help="measure each link between neighbouring hosts both ways, some "
        "seconds each: RDMA with ib_write_bw where both have it, else TCP",
    )


def up(parser: Parser) -> None:
    """Options of `cluster up`; words after `--` go to vLLM."""
    parser.description = f"{parser.description} What stands after the first -- goes to vLLM as it is."
    recipe(parser)
    nodes(parser, rank_order=True)
    sizes(parser)
    starting(parser)
    fabric_test(parser)
    no_probe(parser)
    common(parser)


def no_probe(parser: Parser) -> None:
    """Whether what was started is asked a few questions."""
    parser.add_argument(
        "--no-probe",
        dest="probe",
        action="store_false",
        help="leave out the few questions that are asked finally, once something was started",
    )


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """What stands on the command line of `up` and `swap`; each field is named as its option's `dest`."""

    recipe: str | None = None
    recipe_option: str | None = None
    set: Sequence[str] = ()
    env: Sequence[str] = ()
    inventory: str | None = None
    nodes: str | None = None
    tp: int | None = None
    pipeline: int = 1
    solo: bool = False
    backend: str | None = None
    dry_run: bool = False
    yes: bool = False
    allow_socket: bool = False
    force: Sequence[str] = ()
    bind: str = "0.0.0.0"
    api_key_file: str | None = None
    hub_token_file: str | None = None
    fabric_test: bool = False
    probe: bool = True
    words: Sequence[str] = ()

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """What was typed; options of other commands are left out, those not known there have their defaults."""
        given = vars(args)
        return cls(**{one.name: given[one.name] for one in fields(cls) if one.name in given})


def swap(parser: Parser) -> None:
    """Options of `cluster swap`: those of `up`."""
    parser.description = (
        "Stop what runs, see that its memory is back, start RECIPE there and prove it; what ran before serves again "
        "when RECIPE does not become ready. What stands after the first -- goes to vLLM as it is."
    )
    recipe(parser, default="")
    nodes(parser, "the hosts of what runs, looked for on all hosts of the inventory", rank_order=True)
    sizes(parser)
    starting(parser)
    fabric_test(parser)
    no_probe(parser)
    common(parser)


def pull(parser: Parser) -> None:
    """Options of `cluster pull`."""
    parser.description = "Bring a recipe's image and weights onto every host, and see that they are whole and the same."
    chosen(parser)
    nodes(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what is missing where, and fetch nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask; without a terminal, downloads need it")
    hub_token(parser)
    common(parser)


def down(parser: Parser) -> None:
    """Options of `cluster down`."""
    nodes(parser)
    parser.add_argument("--dry-run", action="store_true", help="print every host's argv in order and change nothing")
    common(parser)


def status(parser: Parser) -> None:
    """Options of `cluster status`."""
    nodes(parser)
    parser.add_argument(
        "--watch",
        action="store_true",
        help="go on looking and say each change once: a hang, a lost rank, falling "
        "memory, low clocks, a link, sockets, a silent host; with --json one object a line",
    )
    parser.add_argument(
        "--interval", type=float, default=10, metavar="S", help="seconds from look to look (default: 10)"
    )
    parser.add_argument(
        "--on-wedge",
        choices=("report", "command", "restart"),
        default="report",
        help="what to do besides: nothing, "
        "run --command at each new finding, or restart all ranks when they hang or one died, not for memory (default: "
        "report)",
    )
    parser.add_argument(
        "--command",
        dest="on_finding",
        metavar="CMD",
        help="program and words to run on this machine; the finding "
        "comes as JSON on stdin, $CLUSTER_FINDING and $CLUSTER_DEPLOYMENT name it; it has 60 s",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=3,
        metavar="N",
        help="restarts in the life of this watch, with pauses of 1, 5 and 15 minutes after them (default: 3)",
    )
    parser.add_argument(
        "--print-unit",
        action="store_true",
        help="print a systemd unit for this machine that watches with these options",
    )
    common(parser)


def doctor(parser: Parser) -> None:
    """Options of `cluster doctor`."""
    parser.description = (
        f"{parser.description} It changes nothing; a deployment of several ranks that serves is asked one completion "
        "of 8 tokens, to see by the HCAs' counters which way its traffic goes."
    )
    chosen(parser)
    nodes(parser, rank_order=True)
    fabric_test(parser)
    parser.add_argument(
        "--bundle",
        metavar="FILE",
        help="also write FILE (.tar.gz) for a bug report: facts, findings, logs of our "
        "ranks, versions, inventory and recipe, without secrets",
    )
    parser.add_argument("-y", "--yes", action="store_true", help="overwrite FILE")
    common(parser)


def probe(parser: Parser) -> None:
    """Options of `cluster probe`."""
    parser.add_argument(
        "-r",
        "--recipe",
        dest="recipe_option",
        metavar="RECIPE",
        help="recipe that says what the server promises: "
        "tools, reasoning, pictures, its context (default: the one that runs; with --base-url none)",
    )
    nodes(parser, "the hosts of what runs, looked for on all hosts of the inventory")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="only what `cluster up` asks finally")
    how.add_argument("--full", action="store_true", help="also seven problems with exact answers, scored: minutes")
    how.add_argument(
        "--only", nargs="+", action="extend", default=[], metavar="NAME", help="only these cases or groups of cases"
    )
    parser.add_argument("--base-url", metavar="URL", help="ask this server, from this machine")
    parser.add_argument("--model", metavar="NAME", help="served model name (default: what the server says)")
    parser.add_argument("--api-key-file", metavar="FILE", help="key of the API at --base-url")
    common(parser)


def logs(parser: Parser) -> None:
    """Options of `cluster logs`."""
    nodes(parser)
    parser.add_argument(
        "--tail", type=int, metavar="N", help="the last lines of each rank (default: 200; all with --explain)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-f", "--follow", action="store_true", help="go on as lines come")
    how.add_argument(
        "--explain",
        action="store_true",
        help="what is wrong instead of the lines: the cause, the line that shows "
        "it, what to do; reads Ray's logs and the hosts' journals as well. Exit code 4 when something has failed",
    )
    common(parser)


def explain(parser: Parser) -> None:
    """Options of `cluster explain`; no host is asked, so there is no inventory."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="file or directory of saved logs and outputs, - for standard input; "
        "several are read together, since one settles what another leaves open",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout; progress on stderr")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def execute(parser: Parser) -> None:
    """Options of `cluster exec`; the command comes after `--`."""
    nodes(parser)
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="seconds a host may take (default: 60)")
    common(parser)


def fit(parser: Parser) -> None:
    """Options of `cluster fit`."""
    chosen(parser)
    parser.add_argument("--tp", "-tp", type=int, nargs="+", metavar="N", help="tensor-parallel sizes (default: 1 2)")
    parser.add_argument("--length", type=int, metavar="N", help="tokens of a sequence (default: max-model-len)")
    parser.add_argument("--sequences", type=int, default=1, metavar="N", help="sequences at once (default: 1)")
    parser.add_argument("--config", metavar="FILE", help="the model's config.json (default: the recipe's `attention`)")
    parser.add_argument(
        "--memory-gib", type=float, default=121.6, metavar="N", help="MemTotal of a host (default: 121.6, a DGX Spark)"
    )
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

    import_module(f"cluster.cli.{module}").configure(parser)


@dataclass(frozen=True)
class Command:
    """One row of the table in `cli.py`."""

    name: str
    summary: str
    configure: Callable[[Parser], Any]
    target: str
    example: str


def results(parser: Parser) -> None:
    """Where results lie."""
    parser.add_argument(
        "--results",
        metavar="DIR",
        help="where results are kept (default: ./results if it exists, else ~/.local/state/cluster/results)",
    )


def runs(text: str) -> int | str:
    """The value of --runs."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number or auto is wanted, found {text!r}") from None


def measuring(parser: Parser) -> None:
    """What is measured and where it is kept; `scaling` and `sweep` hand these on to `bench`."""
    parser.add_argument(
        "--depth", type=int, nargs="+", metavar="N", help="tokens before the prompt (default: the recipe's)"
    )
    parser.add_argument("--pp", "-pp", type=int, nargs="+", metavar="N", help="prompt tokens (default: the recipe's)")
    parser.add_argument(
        "--tg", "-tg", type=int, nargs="+", metavar="N", help="generated tokens (default: the recipe's)"
    )
    parser.add_argument(
        "--runs",
        type=runs,
        metavar="N|auto",
        help="repetitions of each row; auto: until the rates are known within ±2 %%, 3 to 10 (default: the recipe's)",
    )
    parser.add_argument(
        "--concurrency", type=int, nargs="+", metavar="N", help="requests at the same time (default: the recipe's)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the prompts (default: 1)")
    parser.add_argument(
        "--corpus",
        choices=("prose", "code"),
        default="prose",
        help="what the prompts are made of; speculative decoding depends on it (default: prose)",
    )
    parser.add_argument(
        "--prefix-caching",
        action="store_true",
        help="load the context first (rows ctx_pp, ctx_tg), then time the "
        "prompt on top of it; cache hits are verified (default: context and prompt in one cold request)",
    )
    parser.add_argument("--chat", action="store_true", help="/v1/chat/completions (default: /v1/completions)")
    parser.add_argument(
        "--natural-stop", action="store_true", help="outputs end where the model ends them, after --tg tokens at most"
    )
    results(parser)


def suite_abouts() -> dict[str, str]:
    """What each suite of bench answers, by its name. Read without YAML, since every help lists them."""
    text = (resources.files("cluster.bench") / "suites.yaml").read_text("utf-8")
    return {name: about.strip('"') for name, about in re.findall(r"^([a-z-]+):\n  about: (.+)$", text, re.MULTILINE)}


def bench(parser: Parser) -> None:
    """Options of `cluster bench`."""
    parser.add_argument(
        "-r",
        "--recipe",
        dest="recipe_option",
        metavar="RECIPE",
        help="recipe whose bench defaults and reference numbers count (default: the one that runs)",
    )
    nodes(parser, "the hosts of what runs, looked for on all hosts of the inventory")
    measuring(parser)
    suites = suite_abouts()
    about = "; ".join(f"{name}: {text}" for name, text in suites.items())
    parser.add_argument("--suite", choices=tuple(suites), metavar="NAME", help=f"named shapes. {about}")
    parser.add_argument("--base-url", metavar="URL", help="measure this server, from this machine")
    parser.add_argument("--model", metavar="NAME", help="served model name (default: what the server says)")
    parser.add_argument("--api-key-file", metavar="FILE", help="key of the API at --base-url")
    common(parser)


def scaling(parser: Parser) -> None:
    """Options of `cluster scaling`; words after `--` go to vLLM."""
    recipe(parser)
    nodes(parser, rank_order=True)
    parser.add_argument(
        "--tp",
        "-tp",
        type=int,
        nargs="+",
        metavar="N",
        help="tensor-parallel sizes to measure, in this order; each "
        "uses the first hosts (default: 1 and the number of hosts)",
    )
    parser.add_argument(
        "--pipeline-parallel", dest="pipeline", type=int, default=1, metavar="N", help="pipeline size (default: 1)"
    )
    parser.add_argument(
        "--backend",
        choices=("ray", "mp"),
        help="how ranks find each other, at every size, so that they are compared "
        "like with like (default: the recipe's; ray starts Ray at --tp 1 too, mp needs nothing there)",
    )
    in_series(parser)


def sweep(parser: Parser) -> None:
    """Options of `cluster sweep`; words after `--` go to vLLM."""
    recipe(parser)
    parser.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="KEY=A,B,C",
        help="a recipe key as --set takes it, and its "
        "values (YAML, null takes the key away); also tp, pp and backend; given more than once: every combination",
    )
    nodes(parser, rank_order=True)
    sizes(parser, short_pp=False)
    in_series(parser)


def in_series(parser: Parser) -> None:
    """What `scaling` and `sweep` share: how each step is started and measured."""
    parser.description = f"{parser.description} What stands after the first -- goes to vLLM as it is."
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep what an earlier run of the same command measured; go on with the rest",
    )
    starting(parser)
    measuring(parser)
    common(parser)


def report(parser: Parser) -> None:
    """Options of `cluster report`."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="results of bench, or series of scaling and sweep (default: the newest, with what it can be compared to)",
    )
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help="write FILE; its ending says what: .html "
        "(one page, needs no network), .md, .csv or .json (default: Markdown on stdout, and a page beside the results)",
    )
    results(parser)
    common(parser)
