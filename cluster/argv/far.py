"""Programs of `far/` as questions: the text travels on stdin, the words in argv."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from cluster.argv.question import Question

# Reads a program from stdin and leaves the rest of stdin to it. Without quotes, `!`, `$` or a backslash, so that one
# pair of single quotes is right in sh, bash, zsh, csh and fish alike.
LOADER = "import sys;b=sys.stdin.buffer;exec(b.read(int(b.readline())))"
WORDS = ("python3", "-I", "-S", "-c", LOADER)
COMMAND = f"python3 -I -S -c '{LOADER}'"


def framed(text: bytes) -> bytes:
    """A length line, then the text: what LOADER, and the far programs after it, read from stdin."""
    return b"%d\n%s" % (len(text), text)


PRELUDE = "from cluster.far.prelude import"
# Lines that any Python 3 can read, so that one that is too old says so instead of what it cannot parse.
WITH_PRELUDE = """\
import sys,types
if sys.version_info<(3,10):sys.exit("python3 here is %%d.%%d, 3.10 or newer is needed"%%sys.version_info[:2])
if "cluster.far.prelude" not in sys.modules:
  prelude=sys.modules["cluster.far.prelude"]=types.ModuleType("cluster.far.prelude")
  exec(compile(%r,"prelude.py","exec"),prelude.__dict__)
exec(compile(%r,"%s.py","exec"))
"""


@cache
def text(name: str) -> str:
    """What is in `far/<name>.py`. Raises FileNotFoundError when there is none."""
    return (resources.files("cluster") / "far" / f"{name}.py").read_text(encoding="utf-8")


@cache
def source(name: str) -> bytes:
    """The program `far/<name>.py` as it is sent: where it imports the prelude, that goes along as a module."""
    program = text(name)
    return (WITH_PRELUDE % (text("prelude"), program, name) if PRELUDE in program else program).encode()


def far(name: str, given: Any = None, *, timeout_s: float = 10.0, limit: int = 1 << 20) -> Question:
    """The question that runs `far/<name>.py` on a host. `given` is any JSON value; the program finds it as its first
    word (`json.loads(sys.argv[1])`), so it must contain no secret. The program prints one JSON document on stdout."""
    argv = ("python3", "-I", "-S", "-", json.dumps(given))
    return Question(argv, stdin=source(name), timeout_s=timeout_s, limit=limit)


def started(name: str, given: Any = None) -> tuple[tuple[str, ...], bytes]:
    """Words and first stdin for `Host.start`, to run `far/<name>.py` with its stdin left open. `given` as in `far`."""
    return (*WORDS, json.dumps(given)), framed(source(name))
