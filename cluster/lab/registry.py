"""The lab's images as a registry serves them: `docker save` taken apart into blobs and manifests."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar"


def lay_out_registry(saved: Path, registry: Path) -> None:
    """Write what `inside/outside.py` serves: blobs/<digest>, manifests/<digest>, manifests/<name>/<tag> → digest."""
    (registry / "blobs").mkdir(parents=True)
    (registry / "manifests").mkdir()
    with tarfile.open(saved) as tar:
        members = {member.name: member for member in tar.getmembers()}
        for image in json.loads(_read(tar, members, "manifest.json")):
            config = keep(registry, _read(tar, members, image["Config"]), CONFIG)
            layers = [keep(registry, _read(tar, members, name), LAYER) for name in image["Layers"]]
            text = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
            data = json.dumps(text).encode()
            digest = digest_of(data)
            (registry / "manifests" / digest).write_bytes(data)
            for tag in image["RepoTags"]:
                name, _, version = tag.rpartition(":")
                (registry / "manifests" / name).mkdir(parents=True, exist_ok=True)
                (registry / "manifests" / name / version).symlink_to(Path(*[".."] * (name.count("/") + 1), digest))


def keep(registry: Path, data: bytes, kind: str) -> dict[str, Any]:
    """Store a blob; its descriptor."""
    digest = digest_of(data)
    (registry / "blobs" / digest).write_bytes(data)
    return {"mediaType": kind, "size": len(data), "digest": digest}


def digest_of(data: bytes) -> str:
    """A digest as registries write it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _read(tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str) -> bytes:
    """A file of the archive; docker writes a layer that two images share as a link to the first."""
    file = tar.extractfile(members[name])
    if file is None:
        raise ValueError(f"{name} is not a file in the saved images")
    return file.read()
