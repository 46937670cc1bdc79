"""Waiting for what is to come, in every ring."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(
    claim: Callable[[], object], within_s: float, what: str | Callable[[], object], every_s: float = 0.3
) -> float:
    """Wait until a claim holds; how many seconds it took. `what` is said when it does not."""
    began = time.monotonic()
    while not claim():
        if time.monotonic() - began > within_s:
            raise AssertionError(f"not within {within_s:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(every_s)
    return time.monotonic() - began
