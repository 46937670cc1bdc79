"""The screen of a command that is a step of another one."""

from __future__ import annotations

from typing import Any

from cluster.screen import Screen


class Told(Screen):
    """All that the step says is progress of the whole, on stderr; the document it would print is kept in `told`.

    The step itself is not told that it runs for JSON: its errors are to be raised, not printed.
    """

    def __init__(self, *, progress: bool = True) -> None:
        super().__init__(json_mode=progress)
        self.json_mode = False
        self.told: dict[str, Any] = {}

    def document(self, value: Any) -> None:
        """Keep it."""
        self.told = dict(value)
