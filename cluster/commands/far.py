"""Programs of `far/` as questions: the text travels on stdin, the words in argv."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from cluster.commands.question import Question


@cache
def source(name: str) -> bytes:
    """The text of `far/<name>.py`. Raises FileNotFoundError when there is none."""
    return (resources.files("cluster") / "far" / f"{name}.py").read_bytes()


def far(
    name: str, given: Any = None, *, timeout_s: float = 10.0, limit: int = 1 << 20, changes: bool = False
) -> Question:
    """The question that runs `far/<name>.py` on a host.

    `given` is any JSON value; the program finds it as its first word (`json.loads(sys.argv[1])`), so it must
    hold no secret. The program prints one JSON document on stdout.
    """
    argv = ("python3", "-I", "-S", "-", json.dumps(given))
    return Question(argv, stdin=source(name), timeout_s=timeout_s, limit=limit, changes=changes)
