"""An image on a host, from `docker image inspect`, with an id of its content that all image stores agree on.

The image's own id does not serve: overlay2 takes the config's digest, containerd's store the manifest's, and repo
digests are lost by save and load. Layers (diff ids) and Config survive all of that (OCI image-spec, config.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from cluster.argv.docker import docker_image_inspect
from cluster.argv.question import Answer, Question
from cluster.spark.docker import explain
from cluster.spark.fact import Missing
from cluster.spark.sections import as_shape, last_words, load_json, refuse

RUNS = ("Cmd", "Entrypoint", "Env", "StopSignal", "User", "Volumes", "WorkingDir")
"""The parts of Config that change what runs; labels and what is there for builds are left out."""


@dataclass(frozen=True, slots=True)
class Image:
    """One image. `id` is the store's own (differs between stores), `content_id` (hex SHA-256) does not;
    `architecture` is Go's word (`arm64`), `size_bytes` what this store counts."""

    reference: str
    id: str
    content_id: str
    architecture: str
    size_bytes: int


def question(reference: str) -> Question:
    """Ask for one image."""
    return docker_image_inspect(reference)


def parse(reference: str, answer: Answer) -> Image | Missing:
    """Read the image; one that is not on the host is Missing, kind `absent`."""
    refused = refuse(answer, "docker")
    if refused:
        return refused
    if answer.exit:
        words = last_words(answer)
        if "no such image" in words.lower():
            return Missing(f"image {reference} is not on this host", "absent")
        return explain(words)
    try:
        told = load_json(answer.out)[0]
        shape = {
            "reference": reference,
            "id": told["Id"],
            "content_id": content_id(told),
            "architecture": told["Architecture"],
            "size_bytes": told.get("Size") or 0,
        }
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return Missing("docker image inspect printed something else")
    return as_shape(shape, "image", Image)


def content_id(told: Mapping[str, Any]) -> str:
    """SHA-256 over platform, layers and the running parts of Config; raises KeyError or TypeError.

    What one store leaves out and another writes as null, empty or `/` counts as equal.
    """
    config = {name: value for name, value in (told.get("Config") or {}).items() if name in RUNS and value}
    if config.get("WorkingDir") == "/":
        del config["WorkingDir"]
    layers = told["RootFS"]["Layers"]
    if not isinstance(layers, list) or not layers:
        raise TypeError("no layers")
    parts = {"os": told["Os"], "architecture": told["Architecture"], "layers": layers, "config": config}
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()
