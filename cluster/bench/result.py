"""Results on disk: one JSON file a measurement, in llama-benchy's form with our fields added, and its conditions."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from cluster import __version__
from cluster.bench.endpoint import REMEDIES, engine_warnings, lacking
from cluster.bench.rows import Row, Sentinel, known_values, parse_row, parse_sentinel
from cluster.bench.stored import Details, check_values, check_version
from cluster.bench.workload import corpus_id
from cluster.config.written import show
from cluster.errors import ClusterError, UsageError
from cluster.spark.gpu import SPARK, Card, card_of

NAMED, SILENT = {"may_differ": "named"}, {"may_differ": "silent"}
"""Fields of a manifest that are compared, or that do not decide a number by themselves: a difference is named in the
report, or is between any two sizes anyway. A difference of any other field forbids the comparison."""

_SPEC = ("tp", "pp", "backend", "hosts", "host_env", "bind", "secrets", "rank_program", "recipe.port")
SPEC_MAY_DIFFER = tuple(f"spec.{key}." for key in _SPEC)
"""The same for the dotted keys of `spec`, silently; every other key of it must agree."""


@dataclass(frozen=True, slots=True)
class HostState:
    """A machine that served the model. `role`: head or worker; `firmware`: of its HCAs; `gpus`: of each its name,
    memory of its own (MiB) and power limit (W); `gpu`: the name of the first; `clock_limit`: of the GPU's clocks, by
    cluster or somebody else."""

    name: str
    role: str = ""
    product: str = ""
    driver: str = ""
    kernel: str = ""
    hcas: tuple[str, ...] = ()
    mtu: int | None = None
    firmware: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    gpu: str = ""
    clock_limit: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Enough to measure again, and to refuse a false comparison. Empty where it is not known (`--base-url`).

    `nodes` is the number of hosts that served, `spec` the deployment's own (deploy/spec.py), `argv` the server's words
    by host, `replicas` the servers that shared the requests, each of this size and spec (empty: one server), `command`
    the words of our own command line, `client_on` is container (the server's, on the head) or local, `est_ppt_from`
    names the clock of the prompt's time. `engine`: what a server reports that cluster did not start (endpoint.py), with
    the fields that it ignores.
    """

    model: str
    recipe: str = ""
    revision: str = ""
    weights: str = ""
    tp: int | None = field(default=None, metadata=NAMED)
    pipeline: int | None = field(default=None, metadata=NAMED)
    nodes: int | None = field(default=None, metadata=NAMED)
    replicas: tuple[str, ...] = field(default=(), metadata=SILENT)
    backend: str = field(default="", metadata=NAMED)
    deployment: str = field(default="", metadata=SILENT)
    spec: dict[str, Any] = field(default_factory=dict)
    image: str = field(default="", metadata=NAMED)
    image_content: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    hosts: tuple[HostState, ...] = field(default=(), metadata=SILENT)
    argv: dict[str, list[str]] = field(default_factory=dict, metadata=SILENT)
    base_url: str = field(default="", metadata=SILENT)
    command: tuple[str, ...] = field(default=(), metadata=SILENT)
    seed: int = 1
    runs: int | str = field(default=3, metadata=NAMED)
    depth_mode: str = "cold"
    api: str = "/v1/completions"
    corpus: str = field(default_factory=corpus_id)
    natural_stop: bool = False
    extra_fields: dict[str, Any] = field(default_factory=dict)
    suite: str = field(default="", metadata=SILENT)
    refused_fields: tuple[str, ...] = ()
    est_ppt_from: tuple[str, ...] = ()
    engine: dict[str, Any] = field(default_factory=dict)
    client_on: str = "local"
    client_where: str = field(default="", metadata=SILENT)
    client_python: str = field(default="", metadata=SILENT)

    @property
    def size(self) -> str:
        """`TP=2`, or `2 × TP=1` of replicas; empty where it is not known."""
        size = f"TP={self.tp}" if self.tp else ""
        return f"{len(self.replicas)} × {size or 'server'}" if self.replicas else size

    @property
    def products(self) -> tuple[str, ...]:
        return self.of_hosts("product")

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs of each kind of host: `NVIDIA GB10`, or `2 × NVIDIA H200, 143771 MiB, 700 W`."""
        found = {tuple(sorted(Counter(host.gpus).items())) for host in self.hosts if host.gpus}
        kinds = ("; ".join(f"{count} × {one}" if count > 1 else one for one, count in kind) for kind in found)
        return tuple(sorted(kinds))

    def of_hosts(self, name: str) -> tuple[str, ...]:
        """What is known of the hosts by this name, each value once."""
        return tuple(sorted({value for host in self.hosts if (value := getattr(host, name))}))

    @property
    def card(self) -> Card | None:
        """What is known of the GPUs; None unless all are of one known kind. Older results name none: a Spark's."""
        names = {host.gpu or SPARK for host in self.hosts}
        return card_of(names.pop()) if len(names) == 1 else None

    @property
    def simulated(self) -> bool:
        return any("simulated" in product.lower() for product in self.products)

    def document(self) -> dict[str, Any]:
        """As JSON holds it, with the derived fields beside the others."""
        of_hosts = {"products": self.products, "gpus": self.gpus, "clock_limits": self.of_hosts("clock_limit")}
        return asdict(self) | of_hosts | {"drivers": self.of_hosts("driver"), "simulated": self.simulated}


MAY_DIFFER = {item.name: item.metadata["may_differ"] for item in fields(Manifest) if item.metadata}
MAY_DIFFER["clock_limits"] = NAMED["may_differ"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A condition that two measurements do not share."""

    key: str
    a: Any
    b: Any
    must_agree: bool

    def __str__(self) -> str:
        texts = ["(none)" if value in (None, "", (), [], {}) else str(value) for value in (self.a, self.b)]
        return f"{self.key}: " + " → ".join(text if len(text) <= 40 else text[:37] + "…" for text in texts)


def differences(a: Manifest, b: Manifest) -> tuple[Difference, ...]:
    """What differs between two measurements, those that forbid a comparison first.

    Of products, drivers, versions and clocks only what both know is compared: one host's are a part of two hosts'.
    """
    found = []
    old, new = _flat(a.document()), _flat(b.document())
    for key in sorted({*old, *new}):
        before, after, root = old.get(key), new.get(key), key.partition(".")[0]
        silent = MAY_DIFFER.get(root) == "silent" or f"{key}.".startswith(SPEC_MAY_DIFFER)
        if root in ("versions", "est_ppt_from"):
            silent = not (before and after)
        elif root == "gpus" or (root in ("products", "drivers") and before and after):
            one, other = set(before or ()), set(after or ())  # no GPUs in results of before 2026-12
            silent = one <= other or other <= one
        if before != after and not silent:
            found.append(Difference(key, before, after, root not in MAY_DIFFER))
    return tuple(sorted(found, key=lambda difference: not difference.must_agree))


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


SCHEMA = 2
PARTIAL = ".partial.jsonl"


@dataclass(frozen=True, slots=True)
class Result:
    """One measurement. `timestamp` is UTC as llama-benchy writes it; `complete` is False for what Ctrl-C left."""

    manifest: Manifest
    rows: tuple[Row, ...]
    latency_ms: float = 0.0
    timestamp: str = ""
    request: dict[str, Any] | None = None
    version: str = f"cluster {__version__}"
    complete: bool = True
    sentinel: Sentinel | None = None

    @property
    def most_concurrency(self) -> int:
        """The highest number of requests at the same time; above 1, row names end in (cN)."""
        return max((row.concurrency for row in self.rows), default=1)

    @property
    def failed(self) -> int:
        return sum(row.failed for row in self.rows)

    def document(self) -> dict[str, Any]:
        """As JSON: llama-benchy's BenchmarkReport first, then what we add."""
        return {
            "version": self.version,
            "timestamp": self.timestamp,
            "latency_mode": "api",
            "latency_ms": self.latency_ms,
            "model": self.manifest.model,
            "prefix_caching_enabled": self.manifest.depth_mode == "prefix-caching",
            "max_concurrency": self.most_concurrency,
            "benchmarks": [row.document() for row in self.rows],
            "schema": SCHEMA,
            "std_is": "sample standard deviation (n - 1)",
            "complete": self.complete,
            "sentinel": self.sentinel and self.sentinel.document(),
            "request": self.request,
            "manifest": self.manifest.document(),
        }


def clocks(rows: Sequence[Row]) -> tuple[str, ...]:
    """Whose clocks the prompts' times of some rows are from."""
    return tuple(sorted({row.est_ppt_from for row in rows if row.est_ppt_from}))


def parse_result(document: dict[str, Any]) -> Result:
    """The inverse of `Result.document`. Raises ClusterError for one of a later schema; ValueError, KeyError, …"""
    if "schema" not in document:
        raise ClusterError("not a result of cluster bench: it has no schema number", code="result-invalid")
    check_version(document, "schema", SCHEMA)
    if document["schema"] > SCHEMA:
        what = f"the result has schema {document['schema']}; this version reads up to {SCHEMA}"
        raise ClusterError(what, code="result-too-new", remedy="update cluster")
    check_values(Result, document | {"rows": document["benchmarks"]})
    check_values(dict[str, list[Details]], {"rows": document["benchmarks"]})
    deployed = document["manifest"].get("spec", {}).get("recipe", {})
    check_values(dict[str, dict[str, Any]], {"manifest.spec.recipe": deployed})
    check_values(dict[str, dict[str, Any]], {"manifest.spec.recipe.vllm": deployed.get("vllm", {})})
    rows = tuple(map(parse_row, document["benchmarks"]))
    hosts = tuple(HostState(**known_values(HostState, host)) for host in document["manifest"].get("hosts", ()))
    manifest = known_values(Manifest, document["manifest"]) | {"hosts": hosts, "est_ppt_from": clocks(rows)}
    sentinel = parse_sentinel(known) if (known := document.get("sentinel")) else None
    values = {"rows": rows, "sentinel": sentinel, "manifest": Manifest(**manifest)}
    return Result(**known_values(Result, document) | values)


def read_result(path: Path) -> Result:
    """Read a result file, or what an interrupted measurement left. Raises ClusterError naming the file."""
    with reading(path, "result-invalid"):
        if not path.name.endswith(PARTIAL):
            return parse_result(orjson.loads(path.read_bytes()))
        head, *lines = path.read_bytes().split(b"\n")[:-1]  # a kill may have left half a line at the end
        latest = {parse_row(line).shape: line for line in map(orjson.loads, lines)}
        return parse_result(orjson.loads(head) | {"benchmarks": list(latest.values())})


def stored_results(paths: Iterable[Path]) -> Iterator[tuple[Path, Result]]:
    """The results among files, the newest first; files that are no results are passed over."""
    for path in sorted(paths, reverse=True):
        with suppress(ClusterError):
            yield path, read_result(path)


@contextmanager
def reading(path: Path, invalid: str) -> Iterator[None]:
    """Errors of reading a stored file as ClusterErrors that name it; `invalid` is the code for other content."""
    try:
        yield
    except ClusterError as error:
        error.what = f"{path}: {error.what}"
        raise
    except OSError as error:
        raise ClusterError(f"{path}: {error}", code="file-unreadable") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"] if part not in ("float", "list[float]"))
        why = f"{first['msg'].replace('Input should be', 'expected')}, found {show(first['input'])}"
        what = f"{path} cannot be read: {re.sub('^rows', 'benchmarks', key)}: {why}"
        raise ClusterError(what, code=invalid) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClusterError(f"{path} cannot be read: {type(error).__name__} {error}", code=invalid) from error


@contextmanager
def writing(path: Path, option: str = "") -> Iterator[None]:
    """Failures to write a file as an error that names it; as a UsageError where an `option` would have avoided it."""
    try:
        yield
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror or error}"
        if option:
            remedy = f"name another place with {option}"
            raise UsageError(what, code="file-not-written", remedy=remedy) from error
        remedy = "free space there, or measure again with --results DIRECTORY"
        raise ClusterError(what, code="file-not-written", remedy=remedy) from error


def write_whole(path: Path, content: bytes) -> None:
    """Write by rename, so that a reader sees the complete file or none. Raises OSError, and leaves nothing behind."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content)
        fresh.rename(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise


def store(path: Path, document: Mapping[str, Any], option: str = "") -> None:
    """Write a result or a series. Raises as `writing`."""
    with writing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def results_dir(given: str | None) -> Path:
    """Where results lie: as given, else ./results when it exists, else the user's state directory."""
    own = Path.cwd() / "results"
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return Path(given).expanduser() if given else own if own.is_dir() else state / "cluster" / "results"


def file_name(text: str, other: str) -> str:
    """A name as a part of a file's; `other` where nothing is left of it."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-.") or other


class Journal:
    """Keeps the rows of one measurement while it runs, then writes the result."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        """Begin the partial file, before anything is measured. Raises UsageError when the directory is not writable."""
        now = datetime.now(UTC)
        self.timestamp = f"{now:%Y-%m-%d %H:%M:%SZ}"
        replicas = f"{len(manifest.replicas)}x" if manifest.replicas else ""
        size = f"-{replicas}tp{manifest.tp}" if manifest.tp else ""
        stem = f"{now:%Y%m%dT%H%M%S.%fZ}-{file_name(manifest.recipe or manifest.model, 'server')}{size}"
        self.path = directory / f"{stem}.json"
        self.partial = directory / f"{stem}{PARTIAL}"
        head = Result(manifest, (), timestamp=self.timestamp, complete=False).document()
        with writing(self.partial, "--results DIRECTORY"):
            directory.mkdir(parents=True, exist_ok=True)
            write_whole(self.partial, orjson.dumps(head) + b"\n")

    def add(self, row: Row) -> None:
        """Append a row as it is now; the last one of a shape counts. Raises ClusterError when it cannot."""
        with writing(self.partial), self.partial.open("ab") as file:
            file.write(orjson.dumps(row.document()) + b"\n")

    def finish(self, result: Result) -> Path:
        """Write the result; the partial file is no longer needed."""
        store(self.path, result.document())
        self.partial.unlink(missing_ok=True)
        return self.path


def find_baseline(directory: Path, now: Result) -> tuple[tuple[Path, Result] | None, list[str]]:
    """The stored TP=1 measurement of the same recipe under the same conditions; for each other one, what differs.

    Of several, the one with most of the same rows, then the newest.
    """
    shapes = {row.shape for row in now.rows}
    agreeing: list[tuple[int, str, Path, Result]] = []
    refused = []
    for path, result in stored_results(directory.glob("*.json")):
        other, own = result.manifest, now.manifest
        if (other.tp, other.replicas, other.recipe, other.model) != (1, (), own.recipe, own.model):
            continue
        if against := [str(item) for item in differences(other, own) if item.must_agree]:
            refused.append(f"not compared with {path.name}: {'; '.join(against[:5])}")
        else:
            agreeing.append((len(shapes & {row.shape for row in result.rows}), result.timestamp, path, result))
    return max(agreeing, key=lambda item: item[:3])[2:] if agreeing else None, refused[:3]


LOUD = ("THROTTLED", "POWER-CAPPED", "ASYMMETRIC HOSTS", "REPLICA LOST")
"""How notes begin that make a row worth nothing; they stand before the numbers too."""


def warnings(result: Result) -> tuple[str, ...]:
    """What must be read before these numbers."""
    manifest = result.manifest
    lines = [*engine_warnings(manifest.engine, manifest.model)]
    if manifest.simulated and all("simulated wire" in product for product in manifest.products):
        why = "the GPUs are real, what passes between the hosts is not: no scaling over it says anything of a cable"
        lines.append(f"SIMULATED WIRE ({', '.join(manifest.products)}): {why}")
    elif manifest.simulated:
        lines.append(f"SIMULATED HOSTS ({', '.join(manifest.products)}): these numbers say nothing about real ones")
    if manifest.weights == "dummy":
        lines.append("DUMMY WEIGHTS: the model's weights are random; speed only, the text has no meaning")
    if result.failed:
        total = sum(row.requests for row in result.rows)
        lines.append(f"{result.failed} of {total} requests FAILED; the numbers are those of the others")
    if queued := [row.shape.name for row in result.rows if row.queued]:
        lines.append(f"QUEUED in {some_names(queued, 0)}: more clients than max-num-seqs, so the queue is measured too")
    for begin, remedy in REMEDIES.items():  # answers of another model, or of a part of the prompt
        if doubted := {row.shape.name: text for row in result.rows for text in row.failures if begin in text}:
            why = next(iter(doubted.values())).partition(" × ")[2]
            lines.append(f"INVALID {some_names(list(doubted), 0)}: {why}; {remedy}")
    if not result.complete:
        lines.append("INTERRUPTED: not all runs were measured")
    lines += dict.fromkeys(note for row in result.rows for note in row.notes if note.startswith(LOUD))
    if missed := [row.shape.name for row in result.rows if row.cache and set(row.cache) - {"hit", "partial"}]:
        lines.append(f"NO VERIFIED CACHE HIT in {some_names(missed, 0)}: see the notes")
    if result.sentinel and result.sentinel.drifted:
        lines.append(f"THE MACHINE DRIFTED: {result.sentinel}")
    if manifest.refused_fields:
        lines.append(f"the server refused {lacking(manifest.refused_fields)}")
    return tuple(lines)


def some_names(names: Sequence[str], total: int) -> str:
    """A few names in words; `total`: how many there could be."""
    if len(names) == total and total > 1:
        return "all rows"
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
