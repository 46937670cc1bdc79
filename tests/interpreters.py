"""The Pythons of this machine that programs of far/ are tried under: hosts and images have one of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

MINORS = (10, 11, 12, 13)


@cache
def found() -> dict[str, str]:
    """{"3.10": path} of each that starts; the interpreter of the tests stands in for its own version."""
    own = f"3.{sys.version_info.minor}"
    paths = {own: sys.executable}
    for minor in MINORS:
        name = f"python3.{minor}"
        places = [*Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}"), Path(shutil.which(name) or "/nowhere")]
        for place in places:
            if f"3.{minor}" not in paths and starts(place):
                paths[f"3.{minor}"] = str(place)
    return {version: paths[version] for version in sorted(paths, key=lambda one: int(one[2:]))}


def starts(path: Path) -> bool:
    """A shim of pyenv is there and starts nothing."""
    return path.exists() and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0
