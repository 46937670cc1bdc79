"""What the user sees. The only file that imports rich."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import IO, Any, Self, TextIO, cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster.errors import ClusterError

Texts = Sequence[str]
WIDE = 200
"""Columns where there is no terminal: a pipe or file has no width to keep to."""


class Reader:
    """A stream whose reader may go away: a pipe into `head`, a terminal that is closed.

    While `staying` is unset a closed pipe raises BrokenPipeError, which ends a command that only reads, and a full disk
    its OSError; afterwards, and on a terminal that is gone, what is written is lost and the work goes on.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.staying = False
        self.gone = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Callable[..., Any], *given: str) -> None:
        if self.gone:
            return
        try:
            act(*given)
        except OSError as error:
            self.gone = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # Python flushes once more at exit
            if error.errno != errno.EIO and not self.staying:
                raise


class Wall(Console):
    """A console that wraps nothing by itself and leaves a broken pipe to `Reader`."""

    def __init__(self, reader: Reader) -> None:
        width, file = None if reader.isatty() else WIDE, cast(IO[str], reader)
        super().__init__(file=file, width=width, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # not rich's SystemExit: main knows what to do


class Screen:
    """Results go to stdout, progress to stderr; with `json_mode` stdout carries one JSON document only."""

    def __init__(self, *, json_mode: bool = False) -> None:
        self.json_mode = json_mode
        self._trouble = ""
        self._out, self._err = Reader(sys.stdout), Reader(sys.stderr)
        self._progress = Wall(self._err)
        self._result = self._progress if json_mode else Wall(self._out)

    @property
    def reader_gone(self) -> bool:
        """Whether stdout or stderr is a pipe that nobody reads any more."""
        return self._out.gone or self._err.gone

    def stay(self) -> None:
        """Something is being changed: it is carried through even when nobody reads any more."""
        self._out.staying = self._err.staying = True

    @property
    def stays(self) -> bool:
        """Whether something was changed, or is being changed."""
        return self._out.staying

    def line(self, text: str = "") -> None:
        """A line of the result, as it is."""
        self._result.print(text)

    def text(self, text: str, indent: str, style: str | None = None) -> None:
        """A line of the result; on a terminal it is wrapped between words, and goes on below at `indent`."""
        if self._result.is_terminal:
            wrapper = textwrap.TextWrapper(self._result.width, break_long_words=False, break_on_hyphens=False)
            wrapper.subsequent_indent = indent
            text = wrapper.fill(text)
        self._result.print(text, style=style)

    def quote(self, text: str) -> None:
        """A line that holds another program's words; on a terminal it is cut to the width."""
        width = self._result.width
        self._result.print(f"{text[: width - 1]}…" if self._result.is_terminal and len(text) > width else text)

    def note(self, text: str) -> None:
        self._progress.print(text, style="dim" if self._progress.is_terminal else None)

    def trouble(self, text: str) -> None:
        """A line of progress about what is in the way of it, once while only its seconds grow; "" when nothing is."""
        if text and without_seconds(text) != self._trouble:
            self.note(text)
        self._trouble = without_seconds(text)

    def warn(self, text: str) -> None:
        self._progress.print(text, style="yellow")

    def good(self, text: str) -> None:
        self._result.print(text, style="green")

    def table(self, title: str, columns: Texts, rows: Sequence[Texts], notes: Texts = ()) -> None:
        """A table, and its notes below; a column is set right by the caller's mark `>`. Without columns only notes."""
        table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column.lstrip(">"), justify="right" if column[:1] == ">" else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        if columns:
            self._result.print(table, soft_wrap=False)
        for note in notes:
            self.line(f"  {note}")

    def document(self, value: Any, **form: Any) -> None:
        """The one JSON document; printed only when it was asked for."""
        if self.json_mode:
            self._out.write(json.dumps(value, default=str, **(form or {"indent": 2})) + "\n")
            self._out.flush()

    def record(self, value: Any) -> None:
        """One JSON document of many, on a line of its own."""
        self.document(value, separators=(",", ":"))

    def error(self, error: ClusterError) -> None:
        """An error in four lines at most; with several hosts, each host's."""
        for one in error.errors:
            for label, text in one.lines():
                self._progress.print(f"{label}: {text}", style="bold red" if label == "error" else None)
        if self.json_mode:
            self.document({"errors": [one.as_dict() | {"exit": int(one.exit_code)} for one in error.errors]})

    def waiting(self, what: str) -> WaitLine:
        """A visible line for a wait: a spinner on a terminal, one line per change elsewhere; a block ends it."""
        return WaitLine(self._progress, what)

    @property
    def interactive(self) -> bool:
        return sys.stdin.isatty() and self._progress.is_terminal

    def confirm(self, question: str) -> bool:
        """Ask yes or no on the terminal; without one the answer is no."""
        if not self.interactive:
            return False
        self._progress.print(f"{question} [y/N] ", end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")


class QuietScreen(Screen):
    """The screen of a step of a series: all that it shows is progress, on stderr, and its document is kept.

    With `progress` off, what is shown is a result, on stdout. Errors are raised, not printed as JSON.
    """

    def __init__(self, *, progress: bool = True) -> None:
        super().__init__(json_mode=progress)
        self.json_mode = False
        self.kept: dict[str, Any] = {}

    def document(self, value: Any, **form: Any) -> None:
        self.kept = dict(value)


class WaitLine:
    def __init__(self, console: Console, what: str) -> None:
        self._console = console
        self._what, self._shown = what, ""
        self._status = console.status(escape(what)) if console.is_terminal else None
        if self._status:
            self._status.start()
        self.beside("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self.stop()

    def update(self, what: str, trouble: str = "") -> None:
        """Show what is waited for now, and what is in the way of it."""
        self._what = what
        self.beside(trouble)

    def beside(self, trouble: str) -> None:
        """Show what is in the way of it; "" when nothing is. Where no line can be changed its seconds do not count."""
        what = f"{self._what}; {trouble}" if trouble else self._what
        if self._status:
            self._status.update(escape(what))
            return
        shown = f"{self._what}; {without_seconds(trouble)}"
        if shown != self._shown:
            self._shown = shown
            self._console.print(f"waiting: {what}")

    def stop(self) -> None:
        if self._status:
            self._status.stop()


def without_seconds(text: str) -> str:
    """What stays the same while seconds pass."""
    return re.sub(r"\d+ s\b", "", text)
