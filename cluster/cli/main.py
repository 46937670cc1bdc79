"""The table of contents: command → options → the function that does it, imported on use."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cluster import __version__, crash
from cluster.cli import options
from cluster.cli.options import Command, Parser
from cluster.errors import ClusterError, ExitCode, InternalError, InterruptedByUser

if TYPE_CHECKING:
    from cluster.screen import Screen

COMMANDS = (
    Command("up", "start a recipe on hosts and prove that it serves", options.up,
            "cluster.cli.up:run", "cluster up gemma-4-31b-fp8 -n spark1,spark2 --tp 2"),
    Command("swap", "stop what runs and start another recipe there", options.swap,
            "cluster.cli.up:run_swap", "cluster swap gemma-4-26b-a4b-fp8"),
    Command("pull", "image and weights onto every host, verified", options.pull,
            "cluster.cli.pull:run", "cluster pull gemma-4-26b-a4b-fp8 -n spark1,spark2"),
    Command("down", "remove deployments and prove that memory and ports are released", options.down,
            "cluster.cli.down:run", "cluster down"),
    Command("status", "hosts, ranks, Ray, server, memory", options.status,
            "cluster.cli.status:run", "cluster status --json"),
    Command("doctor", "every check of every host: what is wrong, and what to do", options.doctor,
            "cluster.cli.doctor:run", "cluster doctor -n spark1,spark2"),
    Command("probe", "does the server behave: tools, text, reasoning, pictures, streams", options.probe,
            "cluster.cli.probe:run", "cluster probe --only tools"),
    Command("bench", "measure the running server; compare with one Spark", options.bench,
            "cluster.cli.bench:run", "cluster bench --depth 0 4096 16384"),
    Command("scaling", "up, bench, down for each size; one report", options.scaling,
            "cluster.cli.series:run_scaling", "cluster scaling -n spark1,spark2 --tp 1 2 --depth 0 4096 16384"),
    Command("sweep", "up, bench, down with one recipe key varied; one table", options.sweep,
            "cluster.cli.series:run_sweep", "cluster sweep --vary vllm.max-num-seqs=4,8,16 --tp 1"),
    Command("report", "Markdown, CSV, JSON or an HTML page from stored results", options.report,
            "cluster.cli.report:run", "cluster report -o report.html"),
    Command("logs", "logs of all ranks, merged by time", options.logs,
            "cluster.cli.logs:run", "cluster logs --explain"),
    Command("explain", "what is wrong in pasted logs and outputs of commands", options.explain,
            "cluster.cli.explain:run", "docker logs vllm 2>&1 | cluster explain -"),
    Command("exec", "run a command on hosts", options.execute,
            "cluster.cli.exec:run", "cluster exec -n spark1,spark2 -- nvidia-smi -L"),
    Command("fit", "will a recipe fit, and how fast can it possibly be", options.fit,
            "cluster.cli.fit:run", "cluster fit gemma-4-31b-fp8 --tp 1 2"),
    Command("recipes", "list, show or check recipes", options.recipes,
            "cluster.cli.recipes:run", "cluster recipes show gemma-4-31b-fp8"),
    Command("inventory", "list, show, check or add hosts", options.inventory,
            "cluster.cli.inventory:run", "cluster inventory add spark1 192.168.1.41"),
    Command("lab", "simulated Sparks on this machine", options.lab,
            "cluster.cli.lab:run", "cluster lab up"),
)  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, every command configured (for --help, completion and the generated docs)."""
    parser, commands = _top()
    for command in COMMANDS:
        _add(commands, command)
    return parser


def _top() -> tuple[argparse.ArgumentParser, Any]:
    parser = Parser(
        prog="cluster",
        description="Turn DGX Sparks into one OpenAI-compatible endpoint, prove it, measure it.",
        epilog="example: cluster up -n spark1,spark2 --tp 2 && cluster bench --depth 0 4096 16384",
        allow_abbrev=False,
        formatter_class=_formatter,
    )
    parser.add_argument("--version", action="version", version=f"cluster {__version__}")
    parser.add_argument("--print-completion", metavar="SHELL", help="print shell completion (bash, zsh, tcsh)")
    return parser, parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")


def _add(commands: Any, command: Command, *, configured: bool = True) -> None:
    parser = commands.add_parser(
        command.name,
        help=command.summary,
        description=command.summary[0].upper() + command.summary[1:] + ".",
        epilog=f"example: {command.example}",
        allow_abbrev=False,
        formatter_class=_formatter,
    )
    if configured:
        command.configure(parser)


def _formatter(prog: str) -> argparse.HelpFormatter:
    """rich-argparse on a terminal, plain argparse elsewhere; imported only when help is printed."""
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        from rich_argparse import RichHelpFormatter

        return RichHelpFormatter(prog)
    return argparse.HelpFormatter(prog)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read a command line; `args.words` holds what came after the first `--`. Exits 2 on usage errors."""
    words = list(argv)
    after: list[str] | None = None
    if "--" in words:
        cut = words.index("--")
        words, after = words[:cut], words[cut + 1 :]
    parser, commands = _top()
    for command in COMMANDS:
        _add(commands, command, configured=command.name in words)
    args = parser.parse_args(words)
    args.words = after or []
    if args.print_completion:
        import shtab

        sys.stdout.write(shtab.complete(build_parser(), args.print_completion))
        raise SystemExit(ExitCode.DONE)
    if not args.command:
        parser.print_help()
        raise SystemExit(ExitCode.USAGE)
    if after is not None and args.command not in ("up", "swap", "scaling", "sweep", "exec"):
        parser.error(f"`cluster {args.command}` takes nothing after `--`")
    return args


def main(argv: Sequence[str] | None = None, **given: Any) -> int:
    """Entry point; the return value is the exit code. `given` is what a test hands to the action (`connect`).

    No exception leaves it: what nobody expected is one line, with the place where its details were saved.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    crash.take_every_text()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
            signal.signal(number, signal.default_int_handler)  # a lost terminal is met like Ctrl-C
    helpers = crash.Helpers()
    screen: Screen | None = None
    try:
        with helpers:
            args = parse(words)
            from cluster.screen import Screen

            screen = Screen(json_mode=getattr(args, "json", False))
            code = _run(args, screen, given)
        if helpers.bug is None:
            return code
        error: ClusterError = InternalError(helpers.bug)
    except BrokenPipeError:  # the reader went away (`| head`): nothing is wrong
        return ExitCode.DONE
    except KeyboardInterrupt:
        error = InterruptedByUser("interrupted", code="interrupted")
    except ClusterError as caught:
        error = caught
    except OSError as caught:
        error = ClusterError(f"{type(caught).__name__}: {caught}", code="os-error")
        error.__cause__ = caught
    except Exception as caught:
        error = InternalError(caught)
    if helpers.bug is not None and not isinstance(error, InternalError):
        error = InternalError(helpers.bug, rolled_back=error.rolled_back)
    return crash.show(error, screen, words)


def _run(args: argparse.Namespace, screen: Screen, given: dict[str, Any]) -> int:
    command = next(row for row in COMMANDS if row.name == args.command)
    module, function = command.target.split(":")
    return int(getattr(import_module(module), function)(args, screen, **given))


if __name__ == "__main__":
    raise SystemExit(main())
