"""A series of measurements: what `scaling` and `sweep` vary, and what they did, step by step, in one small file.

Rewritten by rename after each step, so that what was measured survives whatever comes next, and `--resume` finds it.
The measurements themselves are results of their own; this file names them and keeps what `up` and `down` reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import yaml

from cluster import __version__
from cluster.bench.result import Result, file_name, read_result, reading
from cluster.bench.rows import known_values
from cluster.bench.stored import check_values, check_version
from cluster.config.written import compose
from cluster.deploy.spec import differing
from cluster.errors import ClusterError, RefusedError, UsageError

SERIES = 1
ENDING = ".series.json"


@dataclass(frozen=True, slots=True)
class Point:
    """One step: a deployment that was started, measured and taken down.

    `values` are what the step varies (`tp`, a recipe key …), `result` the file name of its measurement, `up` and `down`
    the JSON documents of those commands. When it failed, `stage` is up, bench or down and `failed` the reason.
    """

    label: str
    values: dict[str, Any]
    hosts: tuple[str, ...] = ()
    began_unix_s: float = 0.0
    result: str = ""
    stage: str = ""
    failed: str = ""
    exit: int = 0
    up: dict[str, Any] = field(default_factory=dict)
    down: dict[str, Any] = field(default_factory=dict)

    @property
    def moments(self) -> dict[str, dict[str, dict[str, int | None]]]:
        """Bytes `available` and of the `gpu`'s processes, by moment and host, as `up` saw them."""
        return self.up.get("memory_bytes") or {}


@dataclass(frozen=True, slots=True)
class Series:
    """All steps so far. `wanted` is what a later run must want as well to resume this one (no secrets)."""

    kind: str
    recipe: str
    wanted: dict[str, Any]
    varied: tuple[str, ...]
    timestamp: str
    points: tuple[Point, ...] = ()
    version: str = f"cluster {__version__}"

    def document(self) -> dict[str, Any]:
        return {"series": SERIES, **asdict(self)}

    def point(self, values: Mapping[str, Any]) -> Point | None:
        return next((point for point in self.points if point.values == values), None)

    def with_point(self, new: Point) -> Series:
        """The same with a step added, or replaced."""
        others = [point for point in self.points if point.values != new.values]
        return replace(self, points=(*others, new))


def new_series(kind: str, recipe: str, wanted: Mapping[str, Any], varied: Sequence[str]) -> tuple[Series, str]:
    """A series that begins now, and its file name."""
    now = datetime.now(UTC)
    series = Series(kind, recipe, dict(wanted), tuple(varied), f"{now:%Y-%m-%d %H:%M:%SZ}")
    return series, f"{now:%Y%m%dT%H%M%S.%fZ}-{file_name(recipe, 'recipe')}-{kind}{ENDING}"


def parse_series(document: dict[str, Any]) -> Series:
    """The inverse of `Series.document`. Raises ClusterError for one of a later form; ValueError, KeyError, …"""
    if "series" not in document:
        raise ClusterError("not a series of cluster scaling or sweep: it has no series number", code="series-invalid")
    check_version(document, "series", SERIES)
    if document["series"] > SERIES:
        what = f"the series has form {document['series']}; this version reads up to {SERIES}"
        raise ClusterError(what, code="series-too-new", remedy="update cluster")
    check_values(Series, document)
    points = tuple(Point(**known_values(Point, point)) for point in document["points"])
    return Series(**known_values(Series, document) | {"points": points})


def read_series(path: Path) -> Series:
    """Read a series. Raises ClusterError naming the file."""
    with reading(path, "series-invalid"):
        return parse_series(orjson.loads(path.read_bytes()))


def find_series(directory: Path, wanted: Series) -> tuple[Series, Path]:
    """The newest series of the same kind and recipe that wanted the same. Raises RefusedError when there is none."""
    nearest = ""
    plain = orjson.loads(orjson.dumps(wanted.wanted))
    for path in sorted(directory.glob(f"*{ENDING}"), reverse=True):
        with suppress(ClusterError):
            series = read_series(path)
            if (series.kind, series.recipe) == (wanted.kind, wanted.recipe):
                against = differing(series.wanted, plain)
                if not against:
                    return series, path
                nearest = nearest or f"; {path.name} differs: {'; '.join(against[:6])}"
    what = f"no earlier {wanted.kind} of {wanted.recipe} under these conditions in {directory}{nearest}"
    raise RefusedError(what, code="nothing-to-resume", remedy="run the same command without --resume to start one")


def read_point(point: Point, directory: Path) -> Result | None:
    """A step's measurement; None when it failed or its file is gone."""
    try:
        return read_result(directory / point.result) if point.result else None
    except ClusterError:
        return None


SIZES = ("tp", "pp", "backend")
"""Not recipe keys (or more than that): options of `up` that can be varied as well."""


def parse_vary(words: Sequence[str]) -> dict[str, list[str]]:
    """Read `--vary` words: keys and their values, each as it was written (YAML). Raises UsageError."""
    found: dict[str, list[str]] = {}
    for word in words:
        key, _, text = word.partition("=")
        key, text = key.strip(), f"[{text}]"
        node = compose(text, f"--vary {key}")
        if not key or not isinstance(node, yaml.SequenceNode) or not node.value:
            remedy = "e.g. --vary vllm.max-num-seqs=4,8,16"
            raise UsageError(f"--vary {word}: expected KEY=A,B,C", code="vary-invalid", remedy=remedy)
        values = [text[item.start_mark.index : item.end_mark.index].strip() for item in node.value]
        if key in found or len({*values}) < len(values):
            what = f"--vary {word}: a key or value is given twice"
            raise UsageError(what, code="vary-invalid", remedy="one --vary KEY=A,B,C")
        if key in ("tp", "pp") and not all(value.isdigit() and int(value) for value in values):
            raise UsageError(f"--vary {word}: expected numbers of 1 or more", code="vary-invalid")
        if key == "backend" and not {*values} <= {"ray", "mp"}:
            raise UsageError(f"--vary {word}: expected ray or mp", code="vary-invalid")
        found[key] = values
    return found


def combinations(varied: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Every combination, the last key varying fastest."""
    return [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]


def short_key(key: str) -> str:
    """The last part of a dotted key: what a table's header has room for."""
    return key.rpartition(".")[2]


def label_of(values: Mapping[str, str]) -> str:
    """`num_speculative_tokens=4 backend=ray`."""
    return " ".join(f"{short_key(key)}={value}" for key, value in values.items())
