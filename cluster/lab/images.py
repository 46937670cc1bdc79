"""The lab's images, built once by a Docker daemon of the lab, and hosts that start with a copy of its data root.

cluster-lab/vllm:real     vLLM on CPU and Ray, as they are
cluster-lab/vllm:no-ray   the same without Ray, as the official images come
cluster-lab/vllm:quick    the same, with a `vllm` in front that answers at once (quick/)
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError
from cluster.lab import gpu, wires
from cluster.lab.engine import additions, engine, hash_of, lab_files, toy_models, without_ray
from cluster.lab.place import HostPlace, Place
from cluster.lab.program import made_once, run
from cluster.lab.rootfs import image_tar
from cluster.lab.shape import HUB_URL, Spark
from cluster.lab.spark import (
    await_docker,
    await_init,
    await_ssh,
    boot,
    end,
    enter_words,
    inside,
    lay_out,
    start_daemons,
)

BASE = "cluster-lab/base:bookworm"
REAL, NO_RAY, QUICK = "cluster-lab/vllm:real", "cluster-lab/vllm:no-ray", "cluster-lab/vllm:quick"
IMAGES = (REAL, NO_RAY, QUICK)
PATH = "/opt/engine/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_USE_AOT_COMPILE": "0",  # nor is anything compiled when a recipe does not say enforce-eager
    "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LANG": "C.UTF-8",
    "HF_ENDPOINT": HUB_URL,
}
QUICK_VLLM = """#!/opt/engine/bin/python3
import sys

sys.path.insert(0, "/opt/quick")
from quick.serve import main

sys.exit(main(sys.argv[1:]))
"""
BUILDER = Spark(99)
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar"


def shown_engines(place: Place) -> dict[str, list[str]]:
    """Where hosts see the engine, with and without Ray; `inside/bundle.py` shows it on to the containers."""
    if place.gpu:
        return gpu.shown(place)
    layers = [str(additions(place)), str(engine(place))]
    return {"opt/cluster-lab/engine": layers, "opt/cluster-lab/engine-no-ray": [str(without_ray(place)), *layers]}


def dockerfiles(place: Place) -> dict[str, str]:
    """By image, how it differs from the base."""
    if not place.gpu:
        return {kind: dockerfile(kind, ENVIRONMENT) for kind in IMAGES}
    common = {name: ENVIRONMENT[name] for name in ("PYTHONDONTWRITEBYTECODE", "LANG", "HF_ENDPOINT")}
    return {REAL: dockerfile(REAL, common | gpu.environment())}


def dockerfile(kind: str, environment: Mapping[str, str]) -> str:
    """Metadata only, but for the quick one's program."""
    path = f"/opt/quick/bin:{PATH}" if kind == QUICK else PATH
    env = {"PATH": path, "CLUSTER_LAB_ENGINE": "no-ray" if kind == NO_RAY else "real", **environment}
    rows = [f"FROM {BASE}", "ENV " + " ".join(f'{name}="{value}"' for name, value in env.items())]
    rows += ["COPY quick /opt/quick"] if kind == QUICK else []
    return "\n".join([*rows, "WORKDIR /root", 'ENTRYPOINT ["vllm"]', ""])


def docker_images(place: Place) -> Path:
    """What a Docker with the images holds (`root`, `layers`), and a `registry` of them; made once for each content."""

    def make(fresh: Path) -> None:
        (fresh / "layers").mkdir(parents=True)
        _build(place, gpu.image_tar(place) if place.gpu else image_tar(place), fresh)
        for layer in (fresh / "root/overlay2").glob("*/diff"):
            layer.rename(fresh / "layers" / layer.parent.name)

    folder = place.cache / f"images-{hash_of('quick', *dockerfiles(place).values(), QUICK_VLLM)}"
    return made_once(folder, "building the lab's images (seconds, once)", make)


def give_images(place: Place, host: HostPlace) -> None:
    """Copy the images into a host's Docker before its first boot.

    The files of layers are linked, not copied: overlayfs never writes to a lower layer.
    """
    images, part = docker_images(place), host.root / "docker.part"
    shutil.rmtree(part, ignore_errors=True)
    run(["cp", "-a", str(images / "root"), str(part)])
    for layer in (images / "layers").iterdir():
        target = part / "overlay2" / layer.name / "diff"
        try:
            run(["cp", "-a", "--link", str(layer), str(target)])
        except ClusterError:  # another file system
            shutil.rmtree(target, ignore_errors=True)
            run(["cp", "-a", str(layer), str(target)])
    shutil.rmtree(host.docker, ignore_errors=True)
    part.rename(host.docker)


def start_hosts(place: Place, switch: int, sparks: Sequence[Spark]) -> None:
    """Boot hosts that do not run, side by side, and wait until SSH and Docker answer. Their files stay as they are."""
    shown = shown_engines(place)
    booted = []
    for spark in sparks:
        end(place, [spark])
        host = place.host(spark.name)
        if not host.boot.exists():
            lay_out(place, spark, toy_models(place))
            give_images(place, host)
        booted.append((spark, boot(place, spark, shown=shown)))
    for spark, first in booted:
        wires.plug_in(switch, spark, await_init(place, spark))
        start_daemons(place.host(spark.name), first)
    for spark in sparks:
        await_ssh(spark)
        await_docker(await_init(place, spark))


def _build(place: Place, tar: Path, kept: Path) -> None:
    """Boot a host without wires, build in its Docker, end it; keep its data root and what a registry serves."""
    host = place.host(BUILDER.name)
    end(place, [BUILDER])
    shutil.rmtree(host.root, ignore_errors=True)
    lay_out(place, BUILDER, None)
    quick = host.upper / "srv/quick"  # becomes /opt/quick: the programs, and `vllm` first on PATH
    (quick / "bin").mkdir(parents=True)
    shutil.copytree(lab_files() / "quick", quick / "quick", ignore=shutil.ignore_patterns("__pycache__"))
    (quick / "bin/vllm").write_text(QUICK_VLLM)
    (quick / "bin/vllm").chmod(0o755)
    images = dockerfiles(place)
    for number, text in enumerate(images.values()):
        (host.upper / f"srv/{number}").write_text(text)
    first = boot(place, BUILDER, shown={}, wire=False)
    init = await_init(place, BUILDER)
    start_daemons(host, first)
    try:
        await_docker(init)
        with tar.open("rb") as data:
            words = enter_words(init, ["docker", "import", "-", BASE])
            subprocess.run(words, stdin=data, check=True, capture_output=True)
        for number, kind in enumerate(images):
            inside(init, ["docker", "build", "-q", "-t", kind, "-f", f"/srv/{number}", "/srv"], timeout_s=300)
        inside(init, ["docker", "save", "-o", "/srv/saved.tar", *images], timeout_s=120)
        lay_out_registry(host.upper / "srv/saved.tar", kept / "registry")
        inside(init, ["sh", "-c", "pkill -TERM -x dockerd; while pgrep -x dockerd; do sleep 0.1; done"])
    finally:
        end(place, [BUILDER])
    shutil.move(host.docker, kept / "root")
    shutil.rmtree(host.root)


def lay_out_registry(saved: Path, registry: Path) -> None:
    """Take `docker save` apart into blobs/<digest>, manifests/<digest>, manifests/<name>/<tag> → digest.

    This is what `inside/outside.py` serves.
    """
    (registry / "blobs").mkdir(parents=True)
    (registry / "manifests").mkdir()
    with tarfile.open(saved) as tar:
        # docker writes a layer that two images share as a link to the first
        members = {member.name: member for member in tar.getmembers()}

        def read(name: str) -> bytes:
            file: Any = tar.extractfile(members[name])
            return bytes(file.read())

        def keep(name: str, kind: str) -> dict[str, Any]:
            data = read(name)
            (registry / "blobs" / digest_of(data)).write_bytes(data)
            return {"mediaType": kind, "size": len(data), "digest": digest_of(data)}

        for image in json.loads(read("manifest.json")):
            layers = [keep(name, LAYER) for name in image["Layers"]]
            config = keep(image["Config"], CONFIG)
            text = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
            data = json.dumps(text).encode()
            (registry / "manifests" / digest_of(data)).write_bytes(data)
            for tag in image["RepoTags"]:
                name, _, version = tag.rpartition(":")
                (registry / "manifests" / name).mkdir(parents=True, exist_ok=True)
                (registry / "manifests" / name / version).symlink_to("../" * (name.count("/") + 1) + digest_of(data))


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
