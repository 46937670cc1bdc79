"""Every option of every command, each once. Light to import: the work is imported when it is asked for."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, Self

MANY: dict[str, Any] = {"action": "append", "default": []}
SHARED = {
    "-i --inventory FILE": "inventory file (default: $CLUSTER_INVENTORY, else ./inventory/default.yaml, else "
    "~/.config/cluster/inventory.yaml)",
    "--json": "one JSON document on stdout; progress on stderr",
    "--debug": "show the traceback of an error",
    "-e --env KEY=VALUE": "environment of every rank; without =VALUE it is taken from yours; secrets (by name: KEY, "
    "TOKEN, PASSWD …) travel as files and are shown nowhere",
    "--dry-run": "print every host's argv in order and change nothing",
    "--hub-token-file FILE": "hub token for downloads (default: $HF_TOKEN, else the file that `hf auth login` writes)",
    "--fabric-test": "measure each link between neighbouring hosts both ways, some seconds each: RDMA with ib_write_bw "
    "where both have it, else TCP",
    "--results DIR": "where results are kept (default: ./results if it exists, else ~/.local/state/cluster/results)",
    "--api-key-file FILE": "key of the API at --base-url",
}
"""Help of what more than one command has."""


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

    def add(self, words: str, text: str = "", to: Any = None, **how: Any) -> None:
        """An option as it is typed (`-n --nodes HOST`): its value is an int for `N`, a float for `S`, else text, and
        without one it is a switch. `text` is its help, where that is no shared one, `to` a group of options.
        """
        *names, last = words.split()
        if not last.startswith("-"):
            how = {"metavar": last, "type": {"N": int, "S": float}.get(last)} | how
        else:
            names.append(last)
            how = how if "choices" in how or "action" in how else {"action": "store_true"} | how
        (to or self).add_argument(*names, help=text or SHARED[words], **how)


def _filled(text: str) -> str:
    """The value of an option or argument that has no other type."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty")
    return text


def common(parser: Parser) -> None:
    """Options that every command understands."""
    parser.add("-i --inventory FILE")
    parser.add("--json")
    parser.add("--debug")


RUNNING = "the hosts of what runs, looked for on all hosts of the inventory"


def nodes(parser: Parser, default: str = "all hosts of the inventory", *, rank_order: bool = False) -> None:
    """Which hosts."""
    first = "; the first is the head" if rank_order else ""
    parser.add("-n --nodes HOST[,HOST…]", f"hosts, groups or user@host:port{first} (default: {default})")


def chosen(parser: Parser, default: str = " (default: see `cluster recipes list`)") -> None:
    """Which recipe, and changes to it."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help=f"recipe name or file{default}")
    parser.add("-r --recipe RECIPE", "the same as RECIPE", dest="recipe_option")
    parser.add("--set KEY.SUB=VALUE", "change a recipe key; VALUE is YAML", **MANY)


def pipeline(parser: Parser, *short: str) -> None:
    parser.add(" ".join((*short, "--pipeline-parallel N")), "pipeline size (default: 1)", dest="pipeline", default=1)


def backend(parser: Parser, text: str) -> None:
    parser.add("--backend", f"how ranks find each other{text}", choices=("ray", "mp"))


def sizes(parser: Parser, *short_pp: str) -> None:
    """How the model is spread."""
    parser.add("--tp -tp N", "tensor-parallel size (default: hosts ÷ pp)")
    pipeline(parser, *short_pp)
    parser.add("--solo", "first host only, --tp 1")
    backend(parser, " (default: the recipe's; one host alone uses neither unless ray is given)")


def starting(parser: Parser) -> None:
    """How everything that starts a deployment goes about it; `scaling` and `sweep` hand these on to `up`."""
    parser.add("--dry-run")
    parser.add("-y --yes", "do not ask before downloads and replacements; without a terminal, downloads need it")
    parser.add("--allow-socket", "accept TCP where RDMA is available")
    parser.add("--force CHECK", "ignore this failed check; its name stands in the error", **MANY)
    parser.add("--bind ADDRESS", "address the API listens on (default: all)", default="0.0.0.0")
    parser.add("--api-key-file FILE", "the API demands the key in this file")
    parser.add("--hub-token-file FILE")


def words_to_vllm(parser: Parser) -> None:
    parser.description = f"{parser.description} What stands after the first -- goes to vLLM as it is."


def up(parser: Parser) -> None:
    words_to_vllm(parser)
    chosen(parser)
    parser.add("-e --env KEY=VALUE", **MANY)
    nodes(parser, rank_order=True)
    bringing_up(parser)


def bringing_up(parser: Parser) -> None:
    """What `up` and `swap` share."""
    sizes(parser, "--pp", "-pp")
    starting(parser)
    parser.add("--fabric-test")
    text = "leave out the few questions that are asked finally, once something was started"
    parser.add("--no-probe", text, dest="probe", action="store_false")
    common(parser)


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
    parser.description = (
        "Stop what runs, see that its memory is back, start RECIPE there and prove it; what ran before serves again "
        "when RECIPE does not become ready."
    )
    words_to_vllm(parser)
    chosen(parser, default="")
    parser.add("-e --env KEY=VALUE", **MANY)
    nodes(parser, RUNNING, rank_order=True)
    bringing_up(parser)


def pull(parser: Parser) -> None:
    parser.description = "Bring a recipe's image and weights onto every host, and see that they are whole and the same."
    chosen(parser)
    nodes(parser)
    parser.add("--dry-run", "say what is missing where, and fetch nothing")
    parser.add("-y --yes", "do not ask; without a terminal, downloads need it")
    parser.add("--hub-token-file FILE")
    common(parser)


def down(parser: Parser) -> None:
    nodes(parser)
    parser.add("--dry-run")
    common(parser)


def status(parser: Parser) -> None:
    nodes(parser)
    parser.add(
        "--watch",
        "go on looking and say each change once: a hang, a lost rank, falling memory, low clocks, a link, sockets, a "
        "silent host; with --json one object a line",
    )
    parser.add("--interval S", "seconds from look to look (default: 10)", default=10)
    parser.add(
        "--on-wedge",
        "what to do besides: nothing, run --command at each new finding, or restart all ranks when they hang or one "
        "died, not for memory (default: report)",
        choices=("report", "command", "restart"),
        default="report",
    )
    parser.add(
        "--command CMD",
        "program and words to run on this machine; the finding comes as JSON on stdin, $CLUSTER_FINDING and "
        "$CLUSTER_DEPLOYMENT name it; it has 60 s",
        dest="on_finding",
    )
    text = "restarts in the life of this watch, with pauses of 1, 5 and 15 minutes after them (default: 3)"
    parser.add("--max-restarts N", text, default=3)
    parser.add("--print-unit", "print a systemd unit for this machine that watches with these options")
    common(parser)


def doctor(parser: Parser) -> None:
    parser.description = (
        f"{parser.description} It changes nothing; a deployment of several ranks that serves is asked one completion "
        "of 8 tokens, to see by the HCAs' counters which way its traffic goes."
    )
    chosen(parser)
    nodes(parser, rank_order=True)
    parser.add("--fabric-test")
    parser.add(
        "--bundle FILE",
        "also write FILE (.tar.gz) for a bug report: facts, findings, logs of our ranks, versions, inventory and "
        "recipe, without secrets",
    )
    parser.add("-y --yes", "overwrite FILE")
    common(parser)


def probe(parser: Parser) -> None:
    parser.add(
        "-r --recipe RECIPE",
        "recipe that says what the server promises: tools, reasoning, pictures, its context (default: the one that "
        "runs; with --base-url none)",
        dest="recipe_option",
    )
    nodes(parser, RUNNING)
    how = parser.add_mutually_exclusive_group()
    parser.add("--quick", "only what `cluster up` asks finally", how)
    parser.add("--full", "also seven problems with exact answers, scored: minutes", how)
    parser.add("--only NAME", "only these cases or groups of cases", how, nargs="+", action="extend", default=[])
    server(parser, "ask")


def server(parser: Parser, verb: str) -> None:
    """A server that is not a deployment of ours."""
    parser.add("--base-url URL", f"{verb} this server, from this machine")
    parser.add("--model NAME", "served model name (default: what the server says)")
    parser.add("--api-key-file FILE")
    common(parser)


def logs(parser: Parser) -> None:
    nodes(parser)
    parser.add("--tail N", "the last lines of each rank (default: 200; all with --explain)")
    how = parser.add_mutually_exclusive_group()
    parser.add("-f --follow", "go on as lines come", how)
    parser.add(
        "--explain",
        "what is wrong instead of the lines: the cause, the line that shows it, what to do; reads Ray's logs and the "
        "hosts' journals as well. Exit code 4 when something has failed",
        how,
    )
    common(parser)


def explain(parser: Parser) -> None:
    """No host is asked, so there is no inventory."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="file or directory of saved logs and outputs, - for standard input; several are read together, since one "
        "settles what another leaves open",
    )
    parser.add("--json")
    parser.add("--debug")


def execute(parser: Parser) -> None:
    nodes(parser)
    parser.add("--timeout S", "seconds a host may take (default: 60)", default=60)
    common(parser)


def fit(parser: Parser) -> None:
    chosen(parser)
    parser.add("--tp -tp N", "tensor-parallel sizes (default: 1 2)", nargs="+")
    parser.add("--length N", "tokens of a sequence (default: max-model-len)")
    parser.add("--sequences N", "sequences at once (default: 1)", default=1)
    parser.add("--config FILE", "the model's config.json (default: the recipe's `attention`)")
    parser.add("--memory-gib N", "MemTotal of a host (default: 121.6, a DGX Spark)", type=float, default=121.6)
    common(parser)


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
    parser.add("--depth N", "tokens before the prompt (default: the recipe's)", nargs="+")
    parser.add("--pp -pp N", "prompt tokens (default: the recipe's)", nargs="+")
    parser.add("--tg -tg N", "generated tokens (default: the recipe's)", nargs="+")
    text = "repetitions of each row; auto: until the rates are known within ±2 %%, 3 to 10 (default: the recipe's)"
    parser.add("--runs N|auto", text, type=runs)
    parser.add("--concurrency N", "requests at the same time (default: the recipe's)", nargs="+")
    parser.add("--seed N", "seed of the prompts (default: 1)", default=1)
    text = "what the prompts are made of; speculative decoding depends on it (default: prose)"
    parser.add("--corpus", text, choices=("prose", "code"), default="prose")
    parser.add(
        "--prefix-caching",
        "load the context first (rows ctx_pp, ctx_tg), then time the prompt on top of it; cache hits are verified "
        "(default: context and prompt in one cold request)",
    )
    parser.add("--chat", "/v1/chat/completions (default: /v1/completions)")
    parser.add("--natural-stop", "outputs end where the model ends them, after --tg tokens at most")
    parser.add("--results DIR")


def suite_abouts() -> dict[str, str]:
    """What each suite of bench answers, by its name. Read without YAML, since every help lists them."""
    text = (resources.files("cluster.bench") / "suites.yaml").read_text("utf-8")
    return {name: about.strip('"') for name, about in re.findall(r"^([a-z-]+):\n  about: (.+)$", text, re.MULTILINE)}


def bench(parser: Parser) -> None:
    text = "recipe whose bench defaults and reference numbers count (default: the one that runs)"
    parser.add("-r --recipe RECIPE", text, dest="recipe_option")
    nodes(parser, RUNNING)
    measuring(parser)
    suites = suite_abouts()
    about = "; ".join(f"{name}: {text}" for name, text in suites.items())
    parser.add("--suite NAME", f"named shapes. {about}", choices=tuple(suites))
    server(parser, "measure")


def scaling(parser: Parser) -> None:
    chosen(parser)
    parser.add("-e --env KEY=VALUE", **MANY)
    nodes(parser, rank_order=True)
    parser.add(
        "--tp -tp N",
        "tensor-parallel sizes to measure, in this order; each uses the first hosts (default: 1 and the number of "
        "hosts)",
        nargs="+",
    )
    pipeline(parser)
    backend(
        parser,
        ", at every size, so that they are compared like with like (default: the recipe's; ray starts Ray at --tp 1 "
        "too, mp needs nothing there)",
    )
    in_series(parser)


def sweep(parser: Parser) -> None:
    chosen(parser)
    parser.add("-e --env KEY=VALUE", **MANY)
    parser.add(
        "--vary KEY=A,B,C",
        "a recipe key as --set takes it, and its values (YAML, null takes the key away); also tp, pp and backend; "
        "given more than once: every combination",
        required=True,
        **MANY,
    )
    nodes(parser, rank_order=True)
    sizes(parser)
    in_series(parser)


def in_series(parser: Parser) -> None:
    """What `scaling` and `sweep` share: how each step is started and measured."""
    words_to_vllm(parser)
    parser.add("--resume", "keep what an earlier run of the same command measured; go on with the rest")
    starting(parser)
    measuring(parser)
    common(parser)


def report(parser: Parser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="results of bench, or series of scaling and sweep (default: the newest, with what it can be compared to)",
    )
    parser.add(
        "-o --output FILE",
        "write FILE; its ending says what: .html (one page, needs no network), .md, .csv or .json (default: Markdown "
        "on stdout, and a page beside the results)",
        **MANY,
    )
    parser.add("--results DIR")
    common(parser)
