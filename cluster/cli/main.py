"""The table of contents: command → options → the function that does it, imported on use."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster import __version__, crash
from cluster.cli.options import DESCRIBED, OPTIONS, TO_VLLM, Parser
from cluster.errors import ClusterError, ExitCode, InternalError, InterruptedByUser

if TYPE_CHECKING:
    from cluster.screen import Screen


ELSEWHERE = {"swap": ("up", "run_swap"), "scaling": ("series", "run_scaling"), "sweep": ("series", "run_sweep")}
"""File of cli/ and its function, where these are not the file of the command's name and its `run`."""


class Command(NamedTuple):
    name: str
    summary: str
    words: str
    """An example, behind the command's name."""

    def load(self, function: str = "") -> Any:
        """What carries it out, or another function beside it."""
        module, run = ELSEWHERE.get(self.name, (self.name, "run"))
        return getattr(import_module(f"cluster.cli.{module}"), function or run)

    @property
    def example(self) -> str:
        return self.words if " | " in self.words else f"cluster {self.name} {self.words}".strip()

    @property
    def description(self) -> str:
        text = DESCRIBED.get(self.name, f"{self.summary[0].upper()}{self.summary[1:]}.")
        return f"{text} What stands after the first -- goes to vLLM as it is." if self.name in TO_VLLM else text


COMMANDS = (
    Command("up", "start a recipe on hosts and prove that it serves", "gemma-4-31b-fp8 -n spark1,spark2 --tp 2"),
    Command("swap", "stop what runs and start another recipe there", "gemma-4-26b-a4b-fp8"),
    Command("pull", "image and weights onto every host, verified", "gemma-4-26b-a4b-fp8 -n spark1,spark2"),
    Command("down", "remove deployments and prove that memory and ports are released", ""),
    Command("status", "hosts, ranks, Ray, server, memory", "--json"),
    Command("doctor", "every check of every host: what is wrong, and what to do", "-n spark1,spark2"),
    Command("probe", "does the server behave: tools, text, reasoning, pictures, streams", "--only tools"),
    Command("bench", "measure the running server; compare with one Spark", "--depth 0 4096 16384"),
    Command("scaling", "up, bench, down for each size; one report", "-n spark1,spark2 --tp 1 2 --depth 0 4096 16384"),
    Command("sweep", "up, bench, down with one recipe key varied; one table", "--vary vllm.max-num-seqs=4,8,16 --tp 1"),
    Command("report", "Markdown, CSV, JSON or an HTML page from stored results", "-o report.html"),
    Command("logs", "logs of all ranks, merged by time", "--explain"),
    Command(
        "explain", "what is wrong in pasted logs and outputs of commands", "docker logs vllm 2>&1 | cluster explain -"
    ),
    Command("exec", "run a command on hosts", "-n spark1,spark2 -- nvidia-smi -L"),
    Command("fit", "will a recipe fit, and how fast can it possibly be", "gemma-4-31b-fp8 --tp 1 2"),
    Command("recipes", "list, show, check or import recipes", "show gemma-4-31b-fp8"),
    Command("inventory", "list, show, check or add hosts", "add spark1 192.168.1.41"),
    Command("lab", "simulated Sparks on this machine", "up"),
)


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The whole command line, for --help, completion and the generated docs; or with the commands that `words` name."""
    parser = Parser(
        prog="cluster",
        description="Turn DGX Sparks into one OpenAI-compatible endpoint, prove it, measure it.",
        epilog="example: cluster up -n spark1,spark2 --tp 2 && cluster bench --depth 0 4096 16384",
        allow_abbrev=False,
        formatter_class=_formatter,
    )
    parser.add_argument("--version", action="version", version=f"cluster {__version__}")
    parser.add_argument("--print-completion", metavar="SHELL", help="print shell completion (bash, zsh, tcsh)")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in COMMANDS:
        one = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=f"example: {command.example}",
            allow_abbrev=False,
            formatter_class=_formatter,
        )
        if command.name in OPTIONS and (words is None or command.name in words):
            one.add_options(OPTIONS[command.name])
        elif words is None or command.name in words:
            command.load("configure")(one)
    return parser


def _formatter(prog: str) -> argparse.HelpFormatter:
    """rich-argparse on a terminal, plain argparse elsewhere; imported only when help is printed."""
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        from rich_argparse import RichHelpFormatter

        return RichHelpFormatter(prog)
    return argparse.HelpFormatter(prog)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read a command line; `args.words` holds what came after the first `--`. Exits 2 on usage errors."""
    cut = list(argv).index("--") if "--" in argv else len(argv)
    parser = build_parser(argv[:cut])
    args = parser.parse_args(argv[:cut])
    args.words = list(argv[cut + 1 :])
    if args.print_completion:
        import shtab

        sys.stdout.write(shtab.complete(build_parser(), args.print_completion))
        raise SystemExit(ExitCode.DONE)
    if not args.command:
        parser.print_help()
        raise SystemExit(ExitCode.USAGE)
    if cut < len(argv) and args.command not in (*TO_VLLM, "exec"):
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
    screen: Screen | None = None
    try:
        with crash.watching_threads():
            args = parse(words)
            from cluster.screen import Screen

            screen = Screen(json_mode=getattr(args, "json", False))
            command = next(row for row in COMMANDS if row.name == args.command)
            return int(command.load()(args, screen, **given))
    except KeyboardInterrupt:
        error: ClusterError = InterruptedByUser()
    except ClusterError as caught:
        error = caught
    except OSError as caught:
        if isinstance(caught, BrokenPipeError) and (screen is None or screen.reader_gone):
            return ExitCode.DONE  # `| head` has read enough: nothing is wrong
        error = ClusterError(_describe(caught, screen), code="os-error")
        error.__cause__ = caught
    except Exception as caught:
        error = InternalError(caught)
    return crash.show(error, screen, words)


def _describe(error: OSError, screen: Screen | None) -> str:
    """The error of the system, with the place that it leaves out."""
    if error.filename is None and screen and screen.reader_gone:
        return f"standard output cannot be written: {error.strerror}"
    try:
        os.getcwd()
    except OSError as gone:
        return f"the current directory cannot be read: {gone.strerror}; change to one that exists"
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    raise SystemExit(main())
