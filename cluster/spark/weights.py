"""The model's files on a host and on the hub, and whether anything is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cluster.argv.docker import WEIGHT_ENDINGS
from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Kind, Missing, known, read_section
from cluster.spark.finding import Check, Finding

if TYPE_CHECKING:
    from cluster.spark.look import Seen
    from cluster.spark.request import Model, Wanted

WEIGHTS_PARITY = Check("weights-parity", "swap-a-model#the-hosts-have-different-copies")
"""Fault: the hosts have different revisions or files of a model, or different contents of a file of its own that the
recipe mounts."""
WEIGHTS = Check("weights", "it-does-not-start#model")
"""Fault: files are missing, short, unreadable, or links lead nowhere; note (doctor): they are not there yet."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's directory. `path` is absolute on the host, `commit` empty for a plain one. `files` and `bytes` count
    its files, links followed. `problems` are sentences about what would keep the engine from loading. `listing` is
    SHA-256 over names and sizes, `hashes` that of the files that were asked for, by path."""

    model: str
    revision: str
    commit: str
    path: str
    files: int
    bytes: int
    problems: tuple[str, ...]
    listing: str = ""
    hashes: dict[str, str] = field(default_factory=dict)


def question(model: Model, hf_home: str, files: Sequence[str] = ()) -> Question:
    """`files`: paths in its directory that are needed beside what every model has."""
    given = {"model": model.id, "revision": model.revision, "hf_home": hf_home, "dummy": model.dummy}
    return far("weights", {**given, "files": list(files)}, timeout_s=20.0)


def parse(answer: Answer) -> Weights | Missing:
    """A snapshot that is not there is Missing, kind `absent`."""
    return read_section(answer, "weights", Weights)


def hub_question(model: Model, token_file: str) -> Question:
    """One request to the hub from the host; `token_file` is a private file there. Of a dummy no weights count."""
    given = {"model": model.id, "revision": model.revision, "token_file": token_file}
    return far("hub_model", {**given, "leave_out": WEIGHT_ENDINGS if model.dummy else ()}, timeout_s=20)


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


NO_FILES = "no weight files"
"""far/weights' words for a directory without any."""


def check_weights(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """Weights that are there are complete; missing ones are fetched, but a missing directory cannot be."""
    for model, copy in zip(wanted.models, seen.copies, strict=False):
        if not isinstance(copy, Missing):
            # of a snapshot all of the model, since its links lead to the files beside
            place = copy.path.partition("/snapshots/")[0] if copy.commit else copy.path
            for problem in copy.problems:
                remedy = f"on {seen.host}: rm -r {place}, then cluster up again"
                if problem == NO_FILES:  # what is there is complete
                    remedy = f"put the weight files into {copy.path}; random weights: --set vllm.load-format=dummy"
                yield WEIGHTS.fault(seen.host, f"the weights of {model.id} are incomplete", problem, remedy)
        elif model.id.startswith("/") or copy.kind != "absent":
            remedy = "put the model on every host under the same path"
            yield WEIGHTS.fault(seen.host, f"the model {model.id} cannot be read", copy.why, remedy)


def check_copies(seens: Sequence[Seen]) -> Iterator[Finding]:
    """The weights are equal on all hosts that have them, and so are the model's own files that a recipe mounts: one may
    have been changed by hand in an equal copy."""
    for copies in zip(*(seen.copies for seen in seens), strict=True):
        pairs = zip(seens, copies, strict=True)
        ids = {seen.host: one.commit or one.listing for seen, copy in pairs if (one := known(copy))}
        remedy = "pin one with --set revision=COMMIT, or copy the directory again"
        yield from WEIGHTS_PARITY.differ("fault", ids, "the hosts have different copies of the model", remedy, 12)
    hashes = {seen.host: one.hashes for seen in seens if (one := known(seen.weights))}
    for name in sorted({name for own in hashes.values() for name in own}):
        contents = {host: own[name] for host, own in hashes.items() if name in own}
        remedy = "sha256sum it on all; copy the right one over the other"
        yield from WEIGHTS_PARITY.differ("fault", contents, f"the hosts have different copies of {name}", remedy, 12)
