"""The options of the commands that measure: bench, scaling, sweep, report."""

from __future__ import annotations

import argparse

from cluster.cli.options import Parser, common, nodes, recipe, sizes, starting


def results(parser: Parser) -> None:
    """Where results lie."""
    parser.add_argument(
        "--results", metavar="DIR", help="where results are kept (default: ./results if it exists, else "
        "~/.local/state/cluster/results)"
    )  # fmt: skip


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
        "--runs", type=runs, metavar="N|auto", help="repetitions of each row; auto: until the rates are known within "
        "±2 %%, 3 to 10 (default: the recipe's)"
    )  # fmt: skip
    parser.add_argument(
        "--concurrency", type=int, nargs="+", metavar="N", help="requests at the same time (default: the recipe's)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the prompts (default: 1)")
    parser.add_argument(
        "--corpus", choices=("prose", "code"), default="prose", help="what the prompts are made of; speculative "
        "decoding depends on it (default: prose)"
    )  # fmt: skip
    parser.add_argument(
        "--prefix-caching", action="store_true", help="load the context first (rows ctx_pp, ctx_tg), then time the "
        "prompt on top of it; cache hits are verified (default: context and prompt in one cold request)"
    )  # fmt: skip
    parser.add_argument("--chat", action="store_true", help="/v1/chat/completions (default: /v1/completions)")
    parser.add_argument(
        "--natural-stop", action="store_true", help="outputs end where the model ends them, after --tg tokens at most"
    )
    results(parser)


def bench(parser: Parser) -> None:
    """Options of `cluster bench`."""
    parser.add_argument(
        "-r", "--recipe", dest="recipe_option", metavar="RECIPE", help="recipe whose bench defaults and reference "
        "numbers count (default: the one that runs)"
    )  # fmt: skip
    nodes(parser, "the hosts of what runs, looked for on all hosts of the inventory")
    measuring(parser)
    from cluster.bench.suites import SUITES

    about = "; ".join(f"{name}: {suite.about}" for name, suite in SUITES.items())
    parser.add_argument("--suite", choices=tuple(SUITES), metavar="NAME", help=f"named shapes. {about}")
    parser.add_argument(
        "--selftest", action="store_true", help="how wrong the client is: measure a built-in server of known timing "
        "(--concurrency 1 4 16 32 128, --runs 3)"
    )  # fmt: skip
    parser.add_argument("--base-url", metavar="URL", help="measure this server, from this machine")
    parser.add_argument("--model", metavar="NAME", help="served model name (default: what the server says)")
    parser.add_argument("--api-key-file", metavar="FILE", help="key of the API at --base-url")
    common(parser)


def scaling(parser: Parser) -> None:
    """Options of `cluster scaling`; words after `--` go to vLLM."""
    recipe(parser)
    nodes(parser, rank_order=True)
    parser.add_argument(
        "--tp", "-tp", type=int, nargs="+", metavar="N", help="tensor-parallel sizes to measure, in this order; each "
        "uses the first hosts (default: 1 and the number of hosts)"
    )  # fmt: skip
    parser.add_argument(
        "--pipeline-parallel", dest="pipeline", type=int, default=1, metavar="N", help="pipeline size (default: 1)"
    )
    parser.add_argument(
        "--backend", choices=("ray", "mp"), help="how ranks find each other, at every size, so that they are compared "
        "like with like (default: the recipe's; ray starts Ray at --tp 1 too, mp needs nothing there)"
    )  # fmt: skip
    in_series(parser)


def sweep(parser: Parser) -> None:
    """Options of `cluster sweep`; words after `--` go to vLLM."""
    recipe(parser)
    parser.add_argument(
        "--vary", action="append", required=True, metavar="KEY=A,B,C", help="a recipe key as --set takes it, and its "
        "values (YAML, null takes the key away); also tp, pp and backend; given more than once: every combination"
    )  # fmt: skip
    nodes(parser, rank_order=True)
    sizes(parser, short_pp=False)
    in_series(parser)


def in_series(parser: Parser) -> None:
    """What `scaling` and `sweep` share: how each step is started and measured."""
    parser.description = f"{parser.description} What stands after the first -- goes to vLLM as it is."
    parser.add_argument(
        "--resume", action="store_true", help="keep what an earlier run of the same command measured; go on with the "
        "rest"
    )  # fmt: skip
    starting(parser)
    measuring(parser)
    common(parser)


def report(parser: Parser) -> None:
    """Options of `cluster report`."""
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="results of bench, or series of scaling and sweep (default: the "
        "newest, with what it can be compared to)"
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", action="append", default=[], metavar="FILE", help="write FILE; its ending says what: .html "
        "(one page, needs no network), .md, .csv or .json (default: Markdown on stdout, and a page beside the results)"
    )  # fmt: skip
    results(parser)
    common(parser)
