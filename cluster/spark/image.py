"""An image on a host: its content by an id that all image stores agree on, and what a short container of it reports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from cluster.argv.docker import why_failed
from cluster.argv.question import Answer
from cluster.config.recipe import PACKAGES
from cluster.spark.docker import explain
from cluster.spark.fact import Missing, as_shape, known, last_words, load_json, refuse
from cluster.spark.finding import Check, Finding
from cluster.spark.identity import MACHINES

if TYPE_CHECKING:
    from cluster.spark.look import Seen
    from cluster.spark.request import Wanted

CONTAINER = Check("container", "it-does-not-start#container-and-gpu")
"""Fault: no container with a GPU can be started. Silent about a `docker info` without the runtime `nvidia`: `--gpus
all` works without."""
IMAGE = Check("image", "it-does-not-start#image")
"""Fault: it is for another architecture, lacks vLLM, Ray or a version that the recipe needs, or does not know the
model; note (doctor): it is not there yet."""
IMAGE_PARITY = Check("image-parity", "upgrade#the-image-is-not-the-same-on-all-hosts")
"""Fault: layers and configuration differ, or the versions inside. Silent about ids and digests, which differ between
stores."""

RUNS = ("Cmd", "Entrypoint", "Env", "StopSignal", "User", "Volumes", "WorkingDir")
"""The parts of Config that change what runs."""


@dataclass(frozen=True, slots=True)
class Image:
    """`id` differs between image stores, `content_id` (hex SHA-256) does not; `architecture` is Go's word (`arm64`),
    `size_bytes` what this store counts."""

    reference: str
    id: str
    content_id: str
    architecture: str
    size_bytes: int


def parse(reference: str, answer: Answer) -> Image | Missing:
    """An image that is not on the host is Missing, kind `absent`."""
    if refused := refuse(answer, "docker"):
        return refused
    if answer.exit:
        absent = Missing(f"image {reference} is not on this host", "absent")
        words = last_words(answer)
        return absent if "no such image" in words.lower() else explain(words)
    try:
        document = load_json(answer.out)[0]
        shape = {
            "reference": reference,
            "id": document["Id"],
            "content_id": content_id(document),
            "architecture": document["Architecture"],
            "size_bytes": document.get("Size") or 0,
        }
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return Missing("docker image inspect printed something else")
    return as_shape(shape, "image", Image)


def content_id(document: Mapping[str, Any]) -> str:
    """SHA-256 over platform, layers and the running parts of Config; raises KeyError or TypeError. What one store
    leaves out and another writes as null, empty or `/` counts as equal."""
    config = {name: value for name, value in (document.get("Config") or {}).items() if name in RUNS and value}
    if config.get("WorkingDir") == "/":
        del config["WorkingDir"]
    layers = document["RootFS"]["Layers"]
    if not isinstance(layers, list) or not layers:
        raise TypeError("no layers")
    parts = {"os": document["Os"], "architecture": document["Architecture"], "layers": layers, "config": config}
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()


@dataclass(frozen=True, slots=True)
class Inside:
    """Versions in an image (empty: not there), whether vLLM knows the architecture, the GPUs seen in a container;
    `packages`: the folder in which Python finds vLLM."""

    python: str
    vllm: str
    ray: str
    transformers: str
    nccl: str
    knows_architecture: bool | None
    gpus: tuple[str, ...]
    gpu_error: str = ""
    packages: str = ""


def parse_inside(answer: Answer) -> Inside | Missing:
    if answer.exit is None:
        return Missing("the probe container did not end in time", "timeout")
    if answer.exit != 0:
        return Missing(why_failed(answer), "unreadable")
    try:
        document = json.loads(answer.text)
        texts = {name: document["versions"].get(name) or "" for name in ("vllm", "ray", "transformers", "nccl")}
        texts |= {name: document.get(name) or "" for name in ("python", "gpu_error", "packages")}
        return Inside(**texts, knows_architecture=document["knows_architecture"], gpus=tuple(document["gpus"]))
    except (ValueError, KeyError, TypeError) as error:
        return Missing(f"the probe printed something else: {error}")


def check_inside(wanted: Wanted, host: str, inside: Inside | Missing) -> Iterator[Finding]:
    recipe, image, needs = wanted.recipe, wanted.recipe.image, wanted.recipe.needs
    look = f"on {host}: docker run --rm --gpus all --entrypoint nvidia-smi {image} -L"
    if isinstance(inside, Missing):
        gpu = "could not select device driver" in inside.why or "nvidia" in inside.why.lower()
        configure = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
        remedy = f"on {host}: {configure}" if gpu else look
        yield CONTAINER.fault(host, "no container with a GPU can be started", inside.why, remedy)
        return
    if not inside.gpus:
        why = inside.gpu_error or "nvidia-smi -L: nothing"
        yield CONTAINER.fault(host, "no GPU is seen inside a container", why, look)
    if not inside.packages and any(mount.target.startswith(PACKAGES) for mount in recipe.mounts):
        remedy = f"give the mounts with target {PACKAGES}… an absolute target"
        yield IMAGE.fault(host, f"the folder of vLLM in image {image} is unknown", "", remedy)
    rows = [("vLLM", inside.vllm, needs.vllm, ""), ("transformers", inside.transformers, needs.transformers, "")]
    if wanted.backend == "ray":
        rows.append(("Ray", inside.ray, needs.ray, ", or --backend mp, which needs no Ray"))
    for name, version, need, also in rows:
        remedy = f"use an image with {name} {need}".rstrip() + f" (--set image=…){also}"
        if not version and (need or name != "transformers"):
            yield IMAGE.fault(host, f"{name} not found in image {image}", "", remedy)
        elif version and not _within(version, need):
            yield IMAGE.fault(host, f"{name} {need} required, image {image} has {version}", "", remedy)
    if recipe.architecture and inside.knows_architecture is False:
        what = f"vLLM {inside.vllm} in {image} does not support {recipe.architecture}"
        yield IMAGE.fault(host, what, "not in its model registry", "use a newer image: --set image=…")


def _within(version: str, specifier: str) -> bool:
    """Whether a version will do; one that is no PEP 440 version cannot be judged and will."""
    try:
        return not specifier or SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def check_equal(insides: Mapping[str, Inside | Missing]) -> Iterator[Finding]:
    """Python's patch version, vLLM and Ray are the same in every host's image; Ray refuses to join otherwise."""
    for key in ("python", "vllm", "ray"):
        values = {host: getattr(one, key) for host, one in insides.items() if known(one)}
        what = f"{key} differs between the hosts' images"
        yield from IMAGE_PARITY.differ("fault", values, what, "pull the same image on all hosts")


def check_images(seens: Sequence[Seen]) -> Iterator[Finding]:
    """The image's content is equal on all hosts that have it."""
    found = {seen.host: image for seen in seens if (image := known(seen.image))}
    reference = next((image.reference for image in found.values()), "")
    contents = {host: image.content_id for host, image in found.items()}
    what = f"image {reference} is not the same on all hosts"
    remedy = f"on all: docker pull {reference}, or copy it with docker save and docker load"
    yield from IMAGE_PARITY.differ("fault", contents, what, remedy, 12)


def check_image(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """The image that is there is for this machine; one that is not there is fetched, not a fault."""
    if isinstance(seen.image, Missing) or isinstance(seen.identity, Missing):
        return
    machine = MACHINES.get(seen.identity.arch, seen.identity.arch)
    if MACHINES.get(seen.image.architecture, seen.image.architecture) != machine:
        what = f"image {wanted.recipe.image} is for {seen.image.architecture}"
        remedy = f"docker pull --platform linux/{machine} {wanted.recipe.image}"
        yield IMAGE.fault(seen.host, what, f"uname -m: {seen.identity.arch}", remedy)
