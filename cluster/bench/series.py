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
from cluster.bench.result import Result, file_error, file_name, not_writable, read_result, write_whole
from cluster.bench.rows import known_values
from cluster.config.written import compose
from cluster.deploy.spec import differing
from cluster.errors import ClusterError, UsageError

SERIES = 1
ENDING = ".series.json"


@dataclass(frozen=True, slots=True)
class Point:
    """One step: a deployment that was started, measured and taken down.

    `values` are what the step varies (`tp`, a recipe key …), `result` the file name of its measurement, `up` and `down`
    what those commands said as JSON. When it failed, `stage` is up, bench or down and `failed` the reason.
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
    """All steps so far. `wanted` is what a later run must want as well to go on with this one (no secrets)."""

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
        """The same with a step added, or done again."""
        others = [point for point in self.points if point.values != new.values]
        return replace(self, points=(*others, new))


def new_series(kind: str, recipe: str, wanted: Mapping[str, Any], varied: Sequence[str]) -> tuple[Series, str]:
    """A series that begins now, and its file name."""
    now = datetime.now(UTC)
    series = Series(kind, recipe, dict(wanted), tuple(varied), f"{now:%Y-%m-%d %H:%M:%SZ}")
    return series, f"{now:%Y%m%dT%H%M%S.%fZ}-{file_name(recipe, 'recipe')}-{kind}{ENDING}"


def parse_series(document: Mapping[str, Any]) -> Series:
    """The inverse of `Series.document`. Raises ClusterError when it is none."""
    number = document.get("series")
    if not isinstance(number, int):
        raise ClusterError(
            "not a series of cluster scaling or cluster sweep: it has no series number", code="series-invalid"
        )
    if number > SERIES:
        raise ClusterError(
            f"the series has form {number}; this version reads up to {SERIES}",
            code="series-too-new",
            remedy="update cluster",
        )
    try:
        points = tuple(Point(**known_values(Point, point)) for point in document["points"])
        return Series(**known_values(Series, document) | {"points": points})
    except (KeyError, TypeError, AttributeError) as error:
        raise ClusterError(
            f"the series cannot be read: {type(error).__name__} {error}", code="series-invalid"
        ) from error


def read_series(path: Path) -> Series:
    """Read a series. Raises ClusterError naming the file."""
    try:
        document = orjson.loads(path.read_bytes())
        if not isinstance(document, dict):
            raise ClusterError("not a JSON object", code="series-invalid")
        return parse_series(document)
    except (OSError, ValueError, ClusterError) as error:
        raise file_error(path, error) from error


def write_series(series: Series, path: Path) -> None:
    """Raises UsageError when the directory is not writable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, orjson.dumps(series.document(), option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise not_writable(path.parent, error) from error


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier series to go on with; without one, `path` is the newest of this kind and what differs in it."""

    series: Series | None = None
    path: Path | None = None
    differences: tuple[str, ...] = ()


def find_series(directory: Path, kind: str, recipe: str, wanted: Mapping[str, Any]) -> Earlier:
    """The newest series of this kind and recipe that wanted the same."""
    nearest = Earlier()
    plain = orjson.loads(orjson.dumps(wanted))
    for path in sorted(directory.glob(f"*{ENDING}"), reverse=True):
        with suppress(ClusterError):
            series = read_series(path)
            if (series.kind, series.recipe) == (kind, recipe):
                against = tuple(differing(series.wanted, plain))
                if not against:
                    return Earlier(series, path)
                if nearest.path is None:
                    nearest = Earlier(None, path, against)
    return nearest


def read_point(point: Point, directory: Path) -> Result | None:
    """A step's measurement; None when it failed or its file is gone."""
    try:
        return read_result(directory / point.result) if point.result else None
    except ClusterError:
        return None


SIZES = ("tp", "pp", "backend")
"""Not recipe keys (or more than that): options of `up` that can be varied as well."""


@dataclass(frozen=True, slots=True)
class Vary:
    """One key and its values, each as it was written (YAML)."""

    key: str
    values: tuple[str, ...]


def parse_vary(words: Sequence[str]) -> tuple[Vary, ...]:
    """Read `--vary` words. Raises UsageError: no value, a value twice, a key twice."""
    found = tuple(map(_parse, words))
    keys = [one.key for one in found]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(
                f"--vary {key} is given twice", code="vary-invalid", remedy=f"one --vary {key}=A,B,C with all values"
            )
    return found


def _parse(word: str) -> Vary:
    key, sign, text = word.partition("=")
    key = key.strip()
    node = compose(f"[{text}]", f"--vary {key}") if sign and key else None
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise UsageError(
            f"--vary {word}: expected KEY=A,B,C", code="vary-invalid", remedy="e.g. --vary vllm.max-num-seqs=4,8,16"
        )
    whole = f"[{text}]"
    values = [whole[item.start_mark.index : item.end_mark.index].strip() for item in node.value]
    for value in values:
        if values.count(value) > 1:
            raise UsageError(f"--vary {key}: the value {value} is given twice", code="vary-invalid")
    for value in values if key in ("tp", "pp") else ():
        if not value.isdigit() or int(value) < 1:
            raise UsageError(f"--vary {key}: expected a number of 1 or more, got {value}", code="vary-invalid")
    if key == "backend" and not set(values) <= {"ray", "mp"}:
        raise UsageError(f"--vary backend: expected ray or mp, got {', '.join(values)}", code="vary-invalid")
    return Vary(key, tuple(values))


def combinations(varied: Sequence[Vary]) -> list[dict[str, str]]:
    """Every combination, the last key varying fastest."""
    keys = [one.key for one in varied]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(one.values for one in varied))]


def short_key(key: str) -> str:
    """The last part of a dotted key: what a table's header has room for."""
    return key.rpartition(".")[2]


def label_of(values: dict[str, str]) -> str:
    """`num_speculative_tokens=4 backend=ray`."""
    return " ".join(f"{short_key(key)}={value}" for key, value in values.items())
