"""Faults of Docker, images, and the model's files."""

from __future__ import annotations

from cluster.lab.faults.fault import Fault, Scene
from cluster.lab.images import NO_RAY, REAL
from cluster.lab.shape import USER
from cluster.lab.spark import OWN, await_docker, dockerd_words, start_inside
from cluster.lab.toys import FOLDER

KEPT = "cluster-lab/kept:real"
HUB = f"/home/{USER}/.cache/huggingface/hub"
KEPT_MODEL = "/var/lib/kept-model"
STRANGER = "stranger"
HOOK = f"/{OWN}/bin/nvidia-container-runtime-hook"


def stop_docker(scene: Scene) -> None:
    """Docker is stopped, and its containers with it."""
    scene.shell("pkill -TERM -x dockerd; while pgrep -x dockerd >/dev/null; do sleep 0.1; done")


def start_docker(scene: Scene) -> None:
    """Undo stop_docker."""
    if not scene.shell("pgrep -x dockerd || true").strip():
        start_inside(scene.init, *dockerd_words(scene.spark))
    await_docker(scene.init)


def drop_image(scene: Scene) -> None:
    """The image is not on this host; its layers wait under another name."""
    keep_image(scene)
    scene.inside("docker", "rmi", REAL)


def put_no_ray(scene: Scene) -> None:
    """What the tag names has no Ray in it."""
    keep_image(scene)
    scene.inside("docker", "tag", NO_RAY, REAL)


def put_other(scene: Scene) -> None:
    """The tag names other content here than on the other hosts."""
    keep_image(scene)
    text = f"FROM {KEPT}\nENV CLUSTER_LAB_OTHER=1\n"
    scene.shell('printf "%s" "$1" | docker build -q -t "$2" -', text, REAL)


def keep_image(scene: Scene) -> None:
    """Remember the real image under a second name."""
    scene.shell('docker image inspect "$2" >/dev/null 2>&1 || docker tag "$1" "$2"', REAL, KEPT)


def restore_image(scene: Scene) -> None:
    """Undo drop_image, put_no_ray and put_other."""
    line = 'if docker image inspect "$1" >/dev/null 2>&1; then docker tag "$1" "$2" && docker rmi "$1" >/dev/null; fi'
    scene.shell(line, KEPT, REAL)


def drop_model(scene: Scene) -> None:
    """The model is not in the Hugging Face cache."""
    scene.shell(f"test ! -e {HUB}/{FOLDER} || mv {HUB}/{FOLDER} {KEPT_MODEL}")


def cut_model(scene: Scene) -> None:
    """The weight file ends half-way, as after a download that was broken off."""
    scene.shell(
        f"cp -a {HUB}/{FOLDER} {KEPT_MODEL} && for f in {HUB}/{FOLDER}/snapshots/*/*.safetensors; do"
        ' blob=$(readlink -f "$f"); truncate -s $(($(stat -c %s "$blob") / 2)) "$blob"; done'
    )


def restore_model(scene: Scene) -> None:
    """Undo drop_model and cut_model."""
    scene.shell(f"test ! -e {KEPT_MODEL} || (rm -rf {HUB}/{FOLDER} && mv {KEPT_MODEL} {HUB}/{FOLDER})")


def run_stranger(scene: Scene) -> None:
    """A container runs that cluster has not made."""
    words = ["docker", "run", "-d", "--name", STRANGER, "--network", "host", "--gpus", "all", "--entrypoint", "sleep"]
    scene.inside(*words, REAL, "infinity")


def remove_stranger(scene: Scene) -> None:
    """Undo run_stranger."""
    scene.shell(f"docker rm -f {STRANGER} >/dev/null 2>&1; true")


def hide_hook(scene: Scene) -> None:
    """Docker knows no driver for `--gpus`; it asks once, when it starts."""
    stop_docker(scene)
    scene.shell(f"test ! -e {HOOK} || mv {HOOK} {HOOK}.kept")
    start_docker(scene)


def show_hook(scene: Scene) -> None:
    """Undo hide_hook."""
    stop_docker(scene)
    scene.shell(f"test ! -e {HOOK}.kept || mv {HOOK}.kept {HOOK}")
    start_docker(scene)


DOCKER_FAULTS = (
    Fault("docker-down", "dockerd is not running", stop_docker, start_docker),
    Fault("no-gpu", "Docker knows no GPU driver: --gpus all is refused", hide_hook, show_hook),
    Fault("no-image", f"{REAL} is not on this host", drop_image, restore_image),
    Fault("no-ray", f"{REAL} names an image without Ray", put_no_ray, restore_image),
    Fault("other-image", f"{REAL} names other content on this host", put_other, restore_image),
    Fault("no-model", "the model is not in the Hugging Face cache", drop_model, restore_model),
    Fault("cut-model", "the model's weight file ends half-way", cut_model, restore_model),
    Fault(STRANGER, "an unmanaged container runs", run_stranger, remove_stranger),
)
