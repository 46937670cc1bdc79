"""What a fault is, and the host it is made on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import UsageError
from cluster.lab.place import Place
from cluster.lab.shape import Spark
from cluster.lab.spark import init_pid, inside


@dataclass(frozen=True, slots=True)
class Scene:
    """A host that a fault is made on; `switch` is the process that holds the lab's switch."""

    place: Place
    spark: Spark
    switch: int

    @property
    def init(self) -> int:
        """The host's first process. Raises UsageError when the host is down."""
        pid = init_pid(self.place, self.spark)
        if pid is None:
            raise UsageError(
                f"{self.spark.name} is down", code="lab-down", remedy=f"cluster lab mend {self.spark.name}"
            )
        return pid

    @property
    def root(self) -> Path:
        """The running host's root, seen from this machine."""
        return Path(f"/proc/{self.init}/root")

    def inside(self, *argv: str) -> str:
        """Run a program on the host as root. Raises ClusterError when it fails."""
        return inside(self.init, argv)

    def shell(self, text: str, *words: str) -> str:
        """Run a line of sh on the host as root; `words` are its $1, $2, …"""
        return self.inside("sh", "-c", text, "sh", *words)


Act = Callable[[Scene], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `undo` may be called when there is nothing left to undo, e.g. after a reboot.

    `instant` ones happen and are over: there is nothing to mend.
    """

    name: str
    what: str
    make: Act
    undo: Act
    instant: bool = False


def nothing(scene: Scene) -> None:
    """The undo of what is over at once."""
