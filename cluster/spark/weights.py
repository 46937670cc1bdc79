"""The model's files on a host: a snapshot in the Hugging Face cache, or a directory named by its path.

Sources: the cache layout of huggingface_hub ("Understand caching": `hub/models--org--name/{refs,blobs,snapshots}`)
and the safetensors format (8 bytes of header length, a JSON header whose `data_offsets` end where the file does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing
from cluster.spark.sections import read_section


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's directory as found. `path` is absolute on the host, `commit` empty for a plain directory.

    `files` and `bytes` count what the directory holds, links followed. `listing` is SHA-256 over names and sizes:
    equal on two hosts means that both hold the same files. `unfinished` counts blobs whose download did not end
    (of any revision). `problems` are sentences about what would keep the engine from loading; empty means none.
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
    unfinished: int = 0
    hashes: dict[str, str] = field(default_factory=dict)


def question(model: str, revision: str, hf_home: str, *, dummy: bool = False, files: Sequence[str] = ()) -> Question:
    """Ask for a model by hub id and revision, or by absolute path. `dummy`: no weight files are expected; `files` are
    paths in its directory that are wanted beside what every model has."""
    given = {"model": model, "revision": revision, "hf_home": hf_home, "dummy": dummy, "files": list(files)}
    return far("weights", given, timeout_s=20.0)


def parse(answer: Answer) -> Weights | Missing:
    """Read the section `weights` of far/weights; a snapshot that is not there is Missing, kind `absent`."""
    return read_section(answer, "weights", Weights)
