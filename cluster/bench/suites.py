"""The named shapes of `cluster bench --suite`: data, in suites.yaml. Light to import; YAML is loaded by `parts_of`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

FILE = resources.files("cluster.bench") / "suites.yaml"


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement of a suite. `question` ends the text of a chat, `extra` are more fields of each request."""

    title: str
    pp: tuple[int, ...] = (128,)
    tg: tuple[int, ...] = (128,)
    depth: tuple[int, ...] = (0,)
    concurrency: tuple[int, ...] = (1,)
    runs: int = 3
    depth_mode: Literal["cold", "prefix-caching"] = "cold"
    chat: bool = False
    natural_stop: bool = False
    question: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


def abouts() -> dict[str, str]:
    """What each suite answers, by its name. Read without YAML, since the command line's help lists them."""
    found = re.findall(r"^([a-z-]+):\n  about: (.+)$", FILE.read_text("utf-8"), re.MULTILINE)
    return {name: about.strip('"') for name, about in found}


def parts_of(suite: str) -> tuple[Part, ...]:
    """The parts of a suite in order. Raises TypeError for a key that no part has."""
    import yaml

    parts: list[dict[str, Any]] = yaml.safe_load(FILE.read_text("utf-8"))[suite]["parts"]
    return tuple(Part(**{key: _frozen(value) for key, value in part.items()}) for part in parts)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
