"""The model's files on a host and on the hub, and whether anything is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cluster.argv.far import far
from cluster.argv.hub import WEIGHT_ENDINGS
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Kind, Missing, read_section
from cluster.spark.finding import Check, Finding

if TYPE_CHECKING:
    from cluster.spark.look import Seen
    from cluster.spark.request import Wanted

WEIGHTS_PARITY = Check("weights-parity", "swap-a-model#the-hosts-have-different-copies")
WEIGHTS = Check("weights", "it-does-not-start#model")


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's directory as found. `path` is absolute on the host, `commit` empty for a plain directory.

    `files` and `bytes` count what the directory holds, links followed. `listing` is SHA-256 over names and sizes:
    equal on two hosts means that both hold the same files. `problems` are sentences about what would keep the engine
    from loading; empty means none.
    `hashes`: SHA-256 of the files that were asked for, by path.
    """

    model: str
    revision: str
    commit: str
    path: str
    files: int
    bytes: int
    problems: tuple[str, ...]
    listing: str = ""
    hashes: dict[str, str] = field(default_factory=dict)


def question(model: str, revision: str, hf_home: str, *, dummy: bool = False, files: Sequence[str] = ()) -> Question:
    """A model by hub id and revision, or by absolute path. `dummy`: no weight files are expected; `files` are paths in
    its directory that are wanted beside what every model has."""
    given = {"model": model, "revision": revision, "hf_home": hf_home, "dummy": dummy, "files": list(files)}
    return far("weights", given, timeout_s=20.0)


def parse(answer: Answer) -> Weights | Missing:
    """A snapshot that is not there is Missing, kind `absent`."""
    return read_section(answer, "weights", Weights)


def hub_question(model: str, revision: str, token_file: str, *, dummy: bool = False) -> Question:
    """One request to the hub from the host; `token_file` is a private file there, or empty. `dummy`: weights are not
    counted."""
    given = {"model": model, "revision": revision, "token_file": token_file}
    return far("hub_model", {**given, "leave_out": WEIGHT_ENDINGS if dummy else ()}, timeout_s=20)


def parse_hub(answer: Answer) -> int | Missing:
    """Bytes of the files; `refused` when access is not given, `absent` when the model or revision is not there."""
    try:
        document = json.loads(answer.text)
        if "bytes" in document:
            return int(document["bytes"])
        status, error = document["status"], document["error"]
        if not status:
            return Missing(error)
        kind: Kind = "refused" if status in (401, 403) else "absent" if status == 404 else "unreadable"
        return Missing(f"{error} (HTTP {status})", kind)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Missing(answer.error_text.strip()[-200:] or "the hub could not be asked")


def place_of(copy: Weights) -> str:
    """What to remove for a fresh download: of a snapshot the whole model, since its links lead to the files beside."""
    return copy.path.partition("/snapshots/")[0] if copy.commit else copy.path


def check_weights(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """Weights that are there are whole; missing ones are fetched, but a missing directory cannot be."""
    for model, copy in zip(wanted.models, seen.copies, strict=False):
        if not isinstance(copy, Missing):
            for problem in copy.problems:
                remedy = f"on {seen.host}: rm -r {place_of(copy)}, then cluster up again"
                yield WEIGHTS.fault(seen.host, f"the weights of {model.id} are incomplete", problem, remedy)
        elif model.id.startswith("/") or copy.kind != "absent":
            remedy = "put the model on every host under the same path"
            yield WEIGHTS.fault(seen.host, f"the model {model.id} cannot be read", copy.why, remedy)


def check_copies(seens: Sequence[Seen]) -> Iterator[Finding]:
    """The weights are equal on all hosts that have them, and so are the model's own files that a recipe mounts: one may
    have been changed by hand in an equal copy."""
    for copies in zip(*(seen.copies for seen in seens), strict=True):
        there = {seen.host: one for seen, one in zip(seens, copies, strict=True) if not isinstance(one, Missing)}
        ids = {host: one.commit or one.listing for host, one in there.items()}
        remedy = "pin one with --set revision=COMMIT, or copy the directory again"
        yield from WEIGHTS_PARITY.differ("fault", ids, "the hosts have different copies of the model", remedy, 12)
    hashes = {seen.host: seen.weights.hashes for seen in seens if not isinstance(seen.weights, Missing)}
    for name in sorted({name for own in hashes.values() for name in own}):
        contents = {host: own[name] for host, own in hashes.items() if name in own}
        remedy = "sha256sum it on all; copy the right one over the other"
        yield from WEIGHTS_PARITY.differ("fault", contents, f"the hosts have different copies of {name}", remedy, 12)
