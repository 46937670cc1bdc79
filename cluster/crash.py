"""Streams that take every text; an exception that nobody expected, as a line and a file of details."""

from __future__ import annotations

import _thread
import io
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from cluster import __version__
from cluster.errors import ClusterError, InternalError

if TYPE_CHECKING:
    from cluster.screen import Screen

SYMBOLS = dict(zip("✓✗×÷–—−·•’│─├└µ", "+xx/---.*'|-++u", strict=True))
SYMBOLS |= {"→": "->", "←": "<-", "±": "+-", "≤": "<=", "≥": ">=", "°": ""}
KEPT = 20
"""Files of details that are kept; the oldest go."""


def in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    """A handler of codecs: what an encoding lacks, in ASCII."""
    import unicodedata  # here: most terminals need none of it

    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    plain = [
        SYMBOLS.get(one) or unicodedata.normalize("NFKD", one).encode("ascii", "ignore").decode() for one in letters
    ]
    return "".join(one or "?" for one in plain), error.end


def take_every_text() -> None:
    """Make the standard streams write what their encoding lacks in ASCII, and read what it does not know as `?`."""
    import codecs

    codecs.register_error("cluster", in_plain_letters)
    for name, errors in (("stdin", "replace"), ("stdout", "cluster"), ("stderr", "cluster")):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def without_secrets(text: str, words: Sequence[str]) -> str:
    """A text without the secrets that a command line and the environment give us."""
    from pathlib import Path

    from cluster.config.secrets import is_secret, redact_text

    given = [*os.environ.items(), *(word.partition("=")[::2] for word in words)]
    secrets = [value for name, value in given if is_secret(name, value)]
    for option, path in pairwise(words):
        if option in ("--api-key-file", "--hub-token-file"):
            with suppress(OSError, RuntimeError):
                secrets += Path(path).expanduser().read_text(errors="replace").split()
    return redact_text(text, secrets)


def details(error: BaseException, words: Sequence[str]) -> str:
    """Version, command line and traceback, without secrets. `words`: the command line."""
    import platform
    import shlex
    import traceback

    head = f"cluster {__version__}, Python {platform.python_version()} on {platform.platform()}"
    text = f"{head}\n$ cluster {shlex.join(words)}\n\n{''.join(traceback.format_exception(error))}"
    return without_secrets(text, words)


def save(text: str) -> str:
    """Keep details in the user's state directory, where only the user reads them; where they lie."""
    import time
    from pathlib import Path

    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = state / "cluster" / "internal-errors"
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    place = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    for old in sorted(folder.glob("*.txt"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return str(place)


def settle(error: InternalError, words: Sequence[str]) -> str:
    """Save the details of an internal error, take secrets out of its line, and say in it where they lie.

    Returns the details. Never raises: this is what is called when all else failed.
    """
    try:
        text = details(error.bug, words)
        error.what = without_secrets(error.what, words)
    except Exception as another:  # what takes secrets out does not work, so nothing of the message is shown
        error.what = f"internal error: {type(error.bug).__name__}"
        return f"{error.what}; its details could not be read: {type(another).__name__}\n"
    try:
        error.where = f"details in {save(text)}"
    except Exception as another:
        error.where = f"the details could not be saved: {another}"
    return text


def show(error: ClusterError, screen: Screen | None, words: Sequence[str]) -> int:
    """Show an error on the screen, or without one where it cannot; its exit code. `--debug` shows the traceback."""
    text = settle(error, words) if isinstance(error, InternalError) else ""
    if "--debug" in words[: words.index("--") if "--" in words else None]:
        sys.stderr.write(text or details(error, words))
    try:
        if screen is None:
            from cluster.screen import Screen as Made

            screen = Made(json_mode="--json" in words)
        screen.error(error)
    except Exception:  # a screen that does not work; what has to be said is said all the same
        with suppress(OSError):
            sys.stderr.write("".join(f"{label}: {line}\n" for label, line in error.lines()))
    return int(error.exit_code)


class Helpers:
    """What threads beside the main one end with. The first unexpected exception of one is kept as `bug` and interrupts
    the main thread, which would else wait for a thread that is no more; it then leaves as after Ctrl-C.
    """

    def __init__(self) -> None:
        self.bug: BaseException | None = None
        self._before = threading.excepthook

    def __enter__(self) -> Helpers:
        threading.excepthook = self._hear
        return self

    def __exit__(self, *ended: object) -> None:
        own = self._before is threading.__excepthook__  # the interpreter's own, which would print a traceback
        threading.excepthook = (lambda _: None) if own else self._before

    def _hear(self, ended: threading.ExceptHookArgs) -> None:
        if self.bug is None and ended.exc_value is not None:
            self.bug = ended.exc_value
            _thread.interrupt_main()
