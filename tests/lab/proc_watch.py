"""Looks at words and environment of every process of this machine, those of the lab's hosts included, all the time."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import TracebackType

CONTAINER = re.compile(rb"[0-9a-f]{64}")
EVERY_S = 0.05


class Watch:
    """While the block runs: which process showed one of `planted` in its words, or outside of a container in its
    environment.

    `own` are process ids that may (the operator who typed it). In a rank's container the engine's environment may hold
    it, but not that of the container's first process, which is what `docker inspect` would show.
    """

    def __init__(self, *planted: str, own: tuple[int, ...] = ()) -> None:
        self._planted = [text.encode() for text in planted]
        self._own = set(own)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.shown: set[str] = set()
        self.rounds = 0
        self.programs: set[str] = set()

    def allow(self, pid: int) -> None:
        """A process that may show it."""
        self._own.add(pid)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            for place in Path("/proc").glob("[0-9]*"):
                if int(place.name) not in self._own:
                    self._look(place)
            self.rounds += 1

    def _look(self, place: Path) -> None:
        try:
            words = (place / "cmdline").read_bytes()
            self.programs.add(words.split(b"\0")[0].decode("utf-8", "replace"))
            self._judge(place, "words", words, words)
            if b"rank.py" in words or not CONTAINER.search((place / "cgroup").read_bytes()):
                self._judge(place, "environment", (place / "environ").read_bytes(), words)
        except (OSError, ProcessLookupError):
            return

    def _judge(self, place: Path, what: str, text: bytes, words: bytes) -> None:
        if any(planted in text for planted in self._planted):
            shown = words.replace(b"\0", b" ").decode("utf-8", "replace")[:200]
            self.shown.add(f"{what} of {place.name}: {shown}")
