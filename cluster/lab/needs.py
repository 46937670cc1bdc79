"""What a lab needs of this machine: root, Debian 12, a few packages."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cluster.errors import UsageError
from cluster.lab.place import Place
from cluster.lab.program import run, say

PYTHON = "/usr/bin/python3"
PACKAGES = {
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "tar": "tar",
}


def demand_root() -> None:
    """Raises UsageError unless this is root on Linux."""
    if not hasattr(os, "geteuid") or not Path("/proc/self/ns/net").exists():
        raise UsageError(
            "the lab requires Linux: it is made of namespaces",
            code="lab-unsupported",
            remedy="run it on a Debian 12 machine",
        )
    if os.geteuid() != 0:
        raise UsageError(
            "the lab requires root: it makes network namespaces, mounts and Docker daemons",
            code="lab-unsupported",
            remedy="run it as root, e.g. sudo cluster lab up",
        )


def install_packages(place: Place) -> None:
    """Install what is missing with apt-get. None of these packages starts a service."""
    missing = {package for program, package in PACKAGES.items() if shutil.which(program, path=_path()) is None}
    if not _can_make_venv():
        missing.add("python3-venv")
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise UsageError(
            f"missing on this machine: {', '.join(sorted(missing))}", code="program-missing", remedy="install them"
        )
    say(f"installing {', '.join(sorted(missing))}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], env=env, log=place.log, timeout_s=600)
    words = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *sorted(missing)]
    run(words, env=env, log=place.log, timeout_s=900)


def demand_python() -> None:
    """Raises UsageError unless the engine built by this machine's Python fits Debian 12's in the image."""
    if not Path(PYTHON).exists() or run([PYTHON, "-c", "import sys; print(*sys.version_info[:2])"]).split() != [
        "3",
        "11",
    ]:
        raise UsageError(
            f"{PYTHON} is not Python 3.11, so an engine made here would not run in the lab's Debian 12 image",
            code="lab-unsupported",
            remedy="run the lab on Debian 12",
        )


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def _can_make_venv() -> bool:
    """Debian splits ensurepip off into python3-venv."""
    return any(Path("/usr/lib").glob("python3*/ensurepip"))
