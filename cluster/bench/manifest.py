"""The conditions of a measurement, and which of them two measurements must share to be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from cluster.bench.workload import corpus_id

MUST_AGREE = (
    "recipe", "model", "revision", "weights", "image_content", "versions", "spec", "products", "drivers", "simulated",
    "seed", "depth_mode", "corpus", "natural_stop", "api", "extra_fields", "est_ppt_from", "refused_fields",
    "client_on", "engine",
)  # fmt: skip
"""Fields of a manifest that decide a number: a difference forbids the comparison."""

MAY_DIFFER = (
    "tp", "pipeline", "nodes", "backend", "deployment", "base_url", "image", "hosts", "argv", "command", "runs",
    "client_where", "client_python", "suite",
)  # fmt: skip
"""Fields that are compared, or that do not decide a number by themselves; a difference is named in the report."""

SPEC_MAY_DIFFER = ("tp", "pp", "backend", "hosts", "host_env", "bind", "secrets", "rank_program", "recipe.port")
"""The same for the dotted keys of `spec`; every other key of it must agree."""

UNTOLD = ("suite", "deployment", "hosts", "argv", "command", "base_url", "client_where", "client_python")
"""May differ without a word, since they do between any two sizes; so may what SPEC_MAY_DIFFER lists."""


@dataclass(frozen=True, slots=True)
class HostState:
    """A machine that served the model, as it told itself. `role`: head or worker; `firmware`: of its HCAs."""

    name: str
    role: str = ""
    product: str = ""
    driver: str = ""
    kernel: str = ""
    hcas: tuple[str, ...] = ()
    mtu: int | None = None
    firmware: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """Enough to measure again, and to refuse a false comparison. Empty where it is not known (`--base-url`).

    `nodes` is the number of hosts that served, `spec` the deployment's own (deploy/spec.py), `argv` the server's words
    by host, `command` the words of our own command line, `client_on` is container (the server's, on the head) or
    local, `est_ppt_from` says whose clock the prompt's time is from. `engine`: what a server that is not ours says of
    itself (engine.py), with the fields that it does not look at.
    """

    model: str
    recipe: str = ""
    revision: str = ""
    weights: str = ""
    tp: int | None = None
    pipeline: int | None = None
    nodes: int | None = None
    backend: str = ""
    deployment: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    image: str = ""
    image_content: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    hosts: tuple[HostState, ...] = ()
    argv: dict[str, list[str]] = field(default_factory=dict)
    base_url: str = ""
    command: tuple[str, ...] = ()
    seed: int = 1
    runs: int | str = 3
    depth_mode: str = "cold"
    api: str = "/v1/completions"
    corpus: str = field(default_factory=corpus_id)
    natural_stop: bool = False
    extra_fields: dict[str, Any] = field(default_factory=dict)
    suite: str = ""
    refused_fields: tuple[str, ...] = ()
    est_ppt_from: tuple[str, ...] = ()
    engine: dict[str, Any] = field(default_factory=dict)
    client_on: str = "local"
    client_where: str = ""
    client_python: str = ""

    @property
    def products(self) -> tuple[str, ...]:
        """The kinds of machine."""
        return tuple(sorted({host.product for host in self.hosts if host.product}))

    @property
    def drivers(self) -> tuple[str, ...]:
        """The GPU drivers."""
        return tuple(sorted({host.driver for host in self.hosts if host.driver}))

    @property
    def simulated(self) -> bool:
        """Whether a machine says of itself that it is simulated."""
        return any("simulated" in product.lower() for product in self.products)

    def document(self) -> dict[str, Any]:
        """As JSON holds it, with the derived fields beside the others."""
        derived = {"products": self.products, "drivers": self.drivers, "simulated": self.simulated}
        return asdict(self) | derived


def parse_manifest(document: Mapping[str, Any]) -> Manifest:
    """The inverse of `Manifest.document`; unknown keys are left out. Raises KeyError or TypeError."""
    known = {item.name for item in fields(Manifest)}
    values = {key: _frozen(value) for key, value in document.items() if key in known}
    states = {item.name for item in fields(HostState)}
    values["hosts"] = tuple(
        HostState(**{key: _frozen(value) for key, value in host.items() if key in states})
        for host in document.get("hosts", ())
    )
    return Manifest(**values)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Difference:
    """A condition that two measurements do not share."""

    key: str
    a: Any
    b: Any
    must_agree: bool

    def __str__(self) -> str:
        return f"{self.key}: {_short(self.a)} → {_short(self.b)}"


def differences(a: Manifest, b: Manifest) -> tuple[Difference, ...]:
    """What differs between two measurements, those that forbid a comparison first.

    Of products, drivers and versions only what both tell is compared: one host's are a part of two hosts'.
    """
    found = [*_compare("", a.document(), b.document())]
    return tuple(sorted(found, key=lambda difference: not difference.must_agree))


def _compare(prefix: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    """Walk both trees; a mapping that both have is entered."""
    for key in sorted({*a, *b}):
        name = prefix + key
        old, new = a.get(key), b.get(key)
        if old == new or name in UNTOLD or _part(name, old, new):
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _compare(name + ".", old, new)
        elif _must_agree(name):
            yield Difference(name, old, new, True)
        elif not name.startswith("spec."):
            yield Difference(name, old, new, False)


def _part(name: str, old: Any, new: Any) -> bool:
    """Whether one side tells only a part of what the other tells, and no more can be expected of it."""
    if name in ("products", "drivers") and old and new:
        return set(old) <= set(new) or set(new) <= set(old)
    if name == "est_ppt_from":
        return not old or not new
    return name.startswith("versions.") and (old is None or new is None)


def _must_agree(name: str) -> bool:
    if name.startswith("spec."):
        inner = name.removeprefix("spec.")
        return not any(inner == key or inner.startswith(key + ".") for key in SPEC_MAY_DIFFER)
    return name.partition(".")[0] not in MAY_DIFFER


def _short(value: Any) -> str:
    text = "(none)" if value in (None, "", (), [], {}) else str(value)
    return text if len(text) <= 40 else text[:37] + "…"
