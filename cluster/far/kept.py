"""What is kept on this host's disks: sections disk, deployments, lock.

Given {"sections": [names], "paths": [path], "data_dir": path}; paths may start with `~`.
Prints a line {"<section>": {"value": …} | {"missing": why, "kind": kind}} for each. Changes nothing.
"""

import errno
import fcntl
import json
import os

from cluster.far.prelude import Json, absolute, emit_sections

LONG_FILE = 1 << 20


def look_disk(given: dict[str, Json]) -> Json:
    return [room(absolute(path)) for path in given["paths"]]


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
    return {"path": path, "free_bytes": system.f_bavail * system.f_frsize, "free_inodes": free_inodes, "device": device}


def look_deployments(given: dict[str, Json]) -> Json:
    place = os.path.join(absolute(given["data_dir"]), "deployments")
    try:
        names = sorted(os.listdir(place))
    except FileNotFoundError:
        return []
    return [
        {"id": name, "before": read_json(os.path.join(place, name, "before.json")) or None}
        for name in names
        if os.path.isdir(os.path.join(place, name))
    ]


def read_json(path: str) -> dict[str, Json]:
    """A small file's JSON object, empty when it cannot be read or is something else."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(LONG_FILE))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def look_lock(given: dict[str, Json]) -> Json:
    """Who else holds flock(2) on the lock's file. What this takes itself ends as it closes the file at once."""
    path = os.path.join(absolute(given["data_dir"]), "lock")
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {"held": False}
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return {"held": False}
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
    finally:
        os.close(file)
    note = read_json(path)
    since = note.get("since")
    return {
        "held": True,
        "who": str(note.get("who", "")),
        "since": float(since) if isinstance(since, (int, float)) else None,
        "why": str(note.get("why", "")),
    }


if __name__ == "__main__":
    emit_sections({"disk": look_disk, "deployments": look_deployments, "lock": look_lock})
