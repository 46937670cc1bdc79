"""What is kept on this host's disks: sections disk, deployments, lock, clock_limit.

Given {"sections": [names], "paths": [path], "data_dir": path}; paths may start with `~`.
Prints a line {"<section>": {"value": …} | {"missing": why, "kind": kind}} for each. Changes nothing.
"""

import fcntl
import glob
import os
import re
from contextlib import suppress

from cluster.far.prelude import Json, absolute, emit_sections, read_json, read_text, read_text_if


def room(path: str) -> dict[str, Json]:
    """The room of a path's nearest parent that this user can see; the path itself when it is there."""
    at = path
    while True:
        try:
            system, device = os.statvfs(at), os.stat(at).st_dev
            break
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            if at == "/":
                raise
            at = os.path.dirname(at)
    free_inodes = system.f_favail if system.f_files else None
    return {
        "path": path,
        "free_bytes": system.f_bavail * system.f_frsize,
        "free_inodes": free_inodes,
        "device": device,
        "read_only": bool(system.f_flag & os.ST_RDONLY),
    }


def look_deployments(given: dict[str, Json]) -> Json:
    place = os.path.join(absolute(given["data_dir"]), "deployments")
    with suppress(FileNotFoundError):
        return [
            {"id": name, "before": read_json(os.path.join(place, name, "before.json")) or None}
            for name in sorted(os.listdir(place))
            if os.path.isdir(os.path.join(place, name))
        ]
    return []


def look_lock(given: dict[str, Json]) -> Json:
    """Who else holds flock(2) on the lock's file. What this takes itself ends as it closes the file at once."""
    path = os.path.join(absolute(given["data_dir"]), "lock")
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return {"held": False}
    except FileNotFoundError:
        return {"held": False}
    except BlockingIOError:
        note = read_json(path)
        return {"held": True, "who": note.get("who", ""), "since": note.get("since"), "why": note.get("why", "")}


LIMITERS = (
    *("/etc/systemd/system/*/*.service", "/etc/cron.d/*", "/etc/crontab", "/etc/rc.local"),
    "/var/spool/cron/crontabs/*",
)
LIMITS = re.compile(r"nvidia-smi\b.*\s(?:-lgc|--lock-gpu-clocks)\b")


def look_clock_limit(given: dict[str, Json]) -> Json:
    """The note of what cluster limits the GPU's clocks to, and what else does so at each start of this host."""
    note = read_json(os.path.join(absolute(given["data_dir"]), "clocks.json"))
    mhz = note.get("sm_max_mhz")
    current = note.get("boot") == read_text("/proc/sys/kernel/random/boot_id")
    paths = sorted(path for pattern in LIMITERS for path in glob.glob(pattern))
    others = [path for path in paths if LIMITS.search(read_text_if(path))]
    return {"mhz": mhz if isinstance(mhz, int) else None, "current": current, "others": others}


if __name__ == "__main__":
    emit_sections(
        {
            "disk": lambda given: [room(absolute(path)) for path in given["paths"]],
            "deployments": look_deployments,
            "lock": look_lock,
            "clock_limit": look_clock_limit,
        }
    )
