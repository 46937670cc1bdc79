"""What a fact is when it could not be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Missing:
    """A fact that could not be read, with the reason; never a pass and never a fault.

    absent: the thing or its tool is not there. refused: no permission. timeout: the question hung.
    unreadable: an answer came that cannot be understood.
    """

    why: str
    kind: Literal["absent", "refused", "timeout", "unreadable"] = "unreadable"
