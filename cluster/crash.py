"""Streams that take every text; an exception that nobody expected, as a line and a file of details."""

from __future__ import annotations

import _thread
import io
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from cluster import __version__
from cluster.errors import ClusterError, InternalError

if TYPE_CHECKING:
    from cluster.screen import Screen

SYMBOLS = dict(zip("✓✗×÷–—−·•’│─├└µ", "+xx/---.*'|-++u", strict=True))
SYMBOLS |= {"→": "->", "←": "<-", "±": "+-", "≤": "<=", "≥": ">=", "°": ""}


def in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    """A handler of codecs: what an encoding lacks, in ASCII."""
    import unicodedata  # here: most terminals need none of it

    if not isinstance(error, UnicodeEncodeError):
        raise error
    plain = ""
    for letter in error.object[error.start : error.end]:
        plain += SYMBOLS.get(letter) or unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode() or "?"
    return plain, error.end


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
    """A text without the secrets of a command line and of the environment."""
    from pathlib import Path

    from cluster.config.secrets import is_secret, redact_text

    given = [*os.environ.items(), *(word.partition("=")[::2] for word in words)]
    secrets = [value for name, value in given if is_secret(name, value)]
    for option, path in (*pairwise(words), *(word.partition("=")[::2] for word in words)):
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
    """Write details to the user's state directory, where only the user reads them. Returns the path."""
    import time
    from pathlib import Path

    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = state / "cluster" / "internal-errors"
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    place = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    place.touch(0o600)
    place.write_text(text, encoding="utf-8")
    return str(place)


def show(error: ClusterError, screen: Screen | None, words: Sequence[str]) -> int:
    """Show an error on the screen, or without one where it cannot; its exit code. `--debug` shows the traceback.

    Never raises: this is what is called when all else failed.
    """
    text, what = "", error.what
    if isinstance(error, InternalError):
        error.what = f"internal error: {type(error.bug).__name__}"  # until secrets are out of its message
        try:
            text = details(error.bug, words)
            error.what = without_secrets(what, words)
            error.where = f"details in {save(text)}"
        except Exception as another:
            error.where = f"the details could not be saved: {another}"
    try:
        if "--debug" in words[: words.index("--") if "--" in words else None]:
            sys.stderr.write(text or details(error, words))
        if screen is None:
            from cluster.screen import Screen as Made

            screen = Made(json_mode="--json" in words)
        screen.error(error)
    except Exception:  # a screen that does not work
        with suppress(OSError):
            sys.stderr.write("".join(f"{label}: {line}\n" for label, line in error.lines()))
    return int(error.exit_code)


@contextmanager
def watching_threads() -> Iterator[None]:
    """Raise InternalError for the first unexpected exception of another thread, which interrupts the main thread: it
    would else wait for a thread that is no more.
    """
    bugs: list[BaseException] = []

    def keep(ended: threading.ExceptHookArgs) -> None:
        if not bugs and ended.exc_value is not None:
            bugs.append(ended.exc_value)
            _thread.interrupt_main()

    before, threading.excepthook = threading.excepthook, keep
    try:
        yield
    except (ClusterError, OSError, KeyboardInterrupt) as error:
        if bugs and not isinstance(error, InternalError):
            raise InternalError(bugs[0], rolled_back=getattr(error, "rolled_back", "")) from None
        raise
    finally:
        own = before is threading.__excepthook__  # the interpreter's own, which would print a traceback
        threading.excepthook = (lambda _: None) if own else before
    if bugs:
        raise InternalError(bugs[0])
