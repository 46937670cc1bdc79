"""Checks of what a host has in stock: the image and the model's weights."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.spark.fact import Missing
from cluster.spark.finding import Finding
from cluster.spark.look import Seen
from cluster.spark.request import Wanted
from cluster.spark.weights import Weights

MACHINES = {"aarch64": "arm64", "arm64": "arm64", "x86_64": "amd64", "amd64": "amd64"}
"""An architecture's name in the kernel and in Go → its name in recipes and images."""


def check_image(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """The image that is there is for this machine; one that is not there is fetched, not a fault."""
    if isinstance(seen.image, Missing) or isinstance(seen.identity, Missing):
        return
    machine = MACHINES.get(seen.identity.arch, seen.identity.arch)
    if MACHINES.get(seen.image.architecture, seen.image.architecture) != machine:
        yield Finding(
            "fault", "image", seen.host, f"image {wanted.recipe.image} is for {seen.image.architecture}",
            f"uname -m: {seen.identity.arch}", f"docker pull --platform linux/{machine} {wanted.recipe.image}",
        )  # fmt: skip


def place_of(copy: Weights) -> str:
    """What to remove for a fresh download: of a snapshot the whole model, since its links lead to the files beside."""
    return copy.path.partition("/snapshots/")[0] if copy.commit else copy.path


def check_weights(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """Weights that are there are whole; missing ones are fetched, but a missing directory cannot be."""
    for model, copy in zip(wanted.models, seen.copies, strict=False):
        if not isinstance(copy, Missing):
            for problem in copy.problems:
                yield Finding(
                    "fault", "weights", seen.host, f"the weights of {model.id} are not whole", problem,
                    f"on {seen.host}: rm -r {place_of(copy)}, then cluster up again",
                )  # fmt: skip
        elif model.id.startswith("/") or copy.kind != "absent":
            yield Finding(
                "fault", "weights", seen.host, f"the model {model.id} cannot be read", copy.why,
                "put the model on every host under the same path",
            )  # fmt: skip
