"""Real GPUs in the lab (`lab up --gpu`): a card of this machine for each host, and its CUDA, torch and compiler.

The hosts' root file system and the engine (`engine-gpu`, a virtual environment over this machine's torch) are in the
cache already, made by scripts/gpu: nothing is fetched. Containers see this machine's own folders read-only, over an
image that is little more than its /etc, so that no CUDA library has to be in an image. Where compiler, CUDA and driver
are is asked of PATH, the loader's cache and Python.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, UsageError
from cluster.lab.place import Place
from cluster.lab.program import made_once, run

MACHINE = "/opt/cluster-lab/machine"
"""Where hosts see this machine's folders; containers see them at their own paths."""
BESIDE = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
NULL = (1, 3)
ETC = (
    *("alternatives", "ca-certificates", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf"),
    *("passwd", "protocols", "services", "ssl/certs", "ssl/openssl.cnf"),
)
EMPTY = (
    *("dev", "home", "mnt", "opt/engine", "proc", "root", "run", "srv", "sys", "tmp", "usr/sbin", "var/log"),
    "var/tmp",
)
CARRIED = re.compile(r"(CUDA|NCCL|NVSHMEM|TORCH\w*|TRITON|NVIDIA|XLA|VLLM|OMP)_\w+|LD_LIBRARY_PATH")
"""Variables of this machine that its CUDA and its rules need (NVLink multicast off, say)."""
NOT_CARRIED = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TORCH_HOME")


def cards(dev: Path = Path("/dev")) -> list[Path]:
    """The device files of this machine's cards, in order."""
    found = [path for path in dev.glob("nvidia[0-9]*") if path.name[6:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[6:]))


def demand_cards(wanted: int | None, dev: Path = Path("/dev")) -> int:
    """How many hosts there are to be: as many as cards, or fewer. Raises UsageError."""
    count = len(cards(dev))
    if not count:
        what, remedy = f"no GPU on this machine: {dev}/nvidia0 does not exist", "cluster lab up simulates them"
        raise UsageError(what, code="lab-unsupported", remedy=remedy)
    if (wanted or 1) > count:
        raise UsageError(f"--hosts {wanted}: one a host, and this machine has {count}", code="lab-size")
    return wanted or count


def nodes(number: int, dev: Path = Path("/dev")) -> list[tuple[str, int, int]]:
    """(name, major, minor) of a host's device files: its own card, and /dev/null under the names of the others.

    The others' names must exist: a process of root would make them otherwise.
    """
    found = [(path.name, *(_numbers(path) if at == number else NULL)) for at, path in enumerate(cards(dev), 1)]
    return found + [(name, *_numbers(dev / name)) for name in BESIDE if (dev / name).exists()]


def _numbers(path: Path) -> tuple[int, int]:
    device = path.stat().st_rdev
    return os.major(device), os.minor(device)


def engine(place: Place) -> Path:
    """The engine for CUDA. Raises UsageError when there is none."""
    found = place.cache / "engine-gpu"
    if not (found / "bin/python3").exists():
        what = f"{found} does not exist: the engine for GPUs is not made here"
        raise UsageError(what, code="lab-unsupported", remedy="scripts/gpu setup makes it")
    return found


def folders(place: Place) -> list[str]:
    """Folders of this machine that containers must see: /usr, and what lies outside of it of compiler, CUDA, driver and
    the engine's Python and torch."""
    asked = [shutil.which(name) or "" for name in ("cc", "gcc", "g++", "nvcc", "nvidia-smi", "ninja")]
    asked += [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), os.environ.get("CUDA_HOME", "")]
    if compiler := shutil.which("cc"):  # which may be a wrapper
        asked += run([compiler, "-print-prog-name=cc1"]).split()
    asked += libraries("libcuda.so.1", "libnvidia-ml.so.1", "libcudart.so")
    words = "import sys, importlib.util as u; s = u.find_spec('torch'); print(sys.base_prefix, s.origin if s else '')"
    asked += run([str(engine(place) / "bin/python3"), "-c", words]).split()
    asked.append(str((engine(place) / "bin/python3").resolve()))
    return ["/usr", *top_folders(asked, place.cache)]


def top_folders(paths: Sequence[str], cache: Path) -> list[str]:
    """The folders like /opt/cuda that hold these paths and what they are links to; /usr, /bin and the cache aside."""
    named = [Path(path) for path in paths if path.startswith("/")]
    found = {path for one in named for path in (one, one.resolve()) if path.exists() and len(path.parts) > 2}
    inside = ("/usr", "/bin", "/lib", "/lib64", "/sbin", cache)
    outside = {Path(*path.parts[:3]) for path in found if not any(path.is_relative_to(one) for one in inside)}
    return sorted(str(path) for path in outside if path.is_dir())


def libraries(*names: str) -> list[str]:
    """Where this machine's loader finds libraries; those that it does not know are left out."""
    known = run([shutil.which("ldconfig") or "/sbin/ldconfig", "-p"])
    return [path for name in names for path in re.findall(rf"^\s+{re.escape(name)}\S* .*=> (\S+)$", known, re.M)]


def shown(place: Place) -> dict[str, list[str]]:
    """What hosts see of this machine, read-only, by place on the host."""
    machine = {f"{MACHINE[1:]}{folder}": [folder] for folder in folders(place)}
    return {"opt/cluster-lab/engine": [str(engine(place).resolve())]} | machine


def binds(place: Place) -> list[tuple[str, str]]:
    """(source on the host, target) of what containers see of this machine; of /usr its parts: images have some."""
    parts = [str(path) for path in sorted(Path("/usr").iterdir()) if path.is_dir() and not path.is_symlink()]
    return [(MACHINE + folder, folder) for folder in (*parts, *folders(place)[1:])]


def smi() -> str:
    """The hosts' nvidia-smi: this machine's own, with this machine's loader and libraries. Raises ClusterError."""
    found = shutil.which("nvidia-smi")
    if not found:
        raise ClusterError("nvidia-smi: not found", code="program-missing", remedy="install the driver's tools")
    program = Path(found).resolve()
    if not program.read_bytes().startswith(b"\x7fELF"):
        return f'#!/bin/sh\nexec {MACHINE}{program} "$@"\n'
    loader = next(path.resolve() for folder in ("/lib64", "/lib") for path in Path(folder).glob("ld-linux-*.so*"))
    where = [str(Path(path).resolve().parent) for path in libraries("libnvidia-ml.so.1", "libc.so.6")]
    where += [str(Path(path).resolve()) for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    paths = ":".join(MACHINE + path for path in dict.fromkeys(where))
    return f'#!/bin/sh\nexec {MACHINE}{loader} --library-path {paths} {MACHINE}{program} "$@"\n'


def environment() -> dict[str, str]:
    """Variables of an image."""
    names = [name for name in os.environ if CARRIED.fullmatch(name) and name not in NOT_CARRIED and os.environ[name]]
    return {name: os.environ[name] for name in names} | {"PATH": "/opt/engine/bin:" + os.environ["PATH"]}


def image_tar(place: Place) -> Path:
    """An image's root: mountpoints, links as this machine has them, and its /etc without secrets."""

    def make(part: Path) -> None:
        etc = [f"./etc/{name}" for name in ETC if Path("/etc", name).exists()]
        run(["tar", "-C", "/", "-cf", str(part), *etc], timeout_s=60)
        with tarfile.open(part, "a") as tar:
            for name in EMPTY:
                tar.addfile(_entry(name, tarfile.DIRTYPE, mode=0o1777 if name.endswith("tmp") else 0o755))
            for path in (*map(Path, ("/bin", "/lib", "/lib32", "/lib64", "/sbin")), *Path("/usr").iterdir()):
                if path.is_symlink():
                    tar.addfile(_entry(str(path)[1:], tarfile.SYMTYPE, link=os.readlink(path)))

    return made_once(place.cache / "image-root-gpu.tar", "making the images' root of this machine's /etc", make)


def _entry(name: str, kind: bytes, *, mode: int = 0o777, link: str = "") -> Any:
    entry = tarfile.TarInfo(f"./{name}")
    entry.type, entry.mode, entry.linkname = kind, mode, link
    return entry
