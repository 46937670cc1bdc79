"""What the tests of diagnosis share: samples with what they should say, and short forms of what was found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cluster.diagnosis.explain import Diagnosis, explain
from cluster.diagnosis.scan import Source

SAMPLES = Path(__file__).parent.parent / "samples"
HEADERS = ("# source: ", "# right diagnosis: ")


@dataclass(frozen=True)
class Sample:
    """A recorded text: its name, whom it is from, the one finding it must give (`level id`, empty for healthy)."""

    name: str
    source: str
    right: str
    text: str


@cache
def samples() -> tuple[Sample, ...]:
    """All samples with a header."""
    files = sorted([*(SAMPLES / "field").iterdir(), *(SAMPLES / "own").iterdir()])
    return tuple(read_sample(path) for path in files)


def read_sample(path: Path) -> Sample:
    """One sample."""
    source, right, text = path.read_text(encoding="utf-8").split("\n", 2)
    told = right.removeprefix(HEADERS[1])
    return Sample(path.stem, source.removeprefix(HEADERS[0]), "" if told == "healthy" else told, text)


def sample(name: str) -> Sample:
    """The sample of that name."""
    return next(one for one in samples() if one.name == name)


def told(*texts: str | Sample) -> Diagnosis:
    """The diagnosis of several texts together, named a, b, c …"""
    given = [one.text if isinstance(one, Sample) else one for one in texts]
    return explain([source("abcdefgh"[at], text) for at, text in enumerate(given)])


def source(name: str, text: str, host: str = "", *, beside: bool = False) -> Source:
    return Source(name, (text.encode(),), host, beside)


def found(*texts: str | Sample) -> list[str]:
    """The findings of all files, each as `level id`."""
    return [f"{one.level} {one.id}" for file in told(*texts).files for one in file.findings]


def lines(name: str) -> list[str]:
    """The lines of a list of examples, without its heading."""
    return [line for line in (SAMPLES / name).read_text(encoding="utf-8").splitlines() if not line.startswith("# ")]
