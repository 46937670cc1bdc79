"""What is kept on this host's disks: sections disk, deployments, lock.

Given {"sections": [names], "paths": [path], "data_dir": path}; paths may start with `~`.
Prints a line {"<section>": {"value": …} | {"missing": why, "kind": kind}} for each. Changes nothing.
"""

import errno
import fcntl
import json
import os
import sys

LONG_FILE = 1 << 20


def absolute(path):
    home = os.path.expanduser("~")
    return os.path.normpath(os.path.join(home, os.path.expanduser(path)))


def look_disk(given):
    return [room(absolute(path)) for path in given["paths"]]


def room(path):
    """The room of a path's nearest parent that this user can see; the path itself when it is there."""
    at = path
    while True:
        try:
            told, device = os.statvfs(at), os.stat(at).st_dev
            break
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            if at == "/":
                raise
            at = os.path.dirname(at)
    return {
        "path": path,
        "free_bytes": told.f_bavail * told.f_frsize,
        "free_inodes": told.f_favail if told.f_files else None,
        "device": device,
    }


def look_deployments(given):
    place = os.path.join(absolute(given["data_dir"]), "deployments")
    try:
        names = sorted(os.listdir(place))
    except FileNotFoundError:
        return []
    found = [(name, os.path.join(place, name)) for name in names]
    return [kept(name, path) for name, path in found if os.path.isdir(path)]


def kept(name, path):
    before = read_json(os.path.join(path, "before.json"))
    return {"id": name, "before": before if isinstance(before, dict) else None}


def read_json(path):
    """A small file's JSON value, None when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read(LONG_FILE))
    except (OSError, ValueError, RecursionError):
        return None


def look_lock(given):
    path = os.path.join(absolute(given["data_dir"]), "lock")
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {"held": False}
    try:
        return holder(path) if is_locked(file) else {"held": False}
    finally:
        os.close(file)


def is_locked(file):
    """Whether somebody else holds flock(2) on an open file. What this takes, the caller drops by closing at once."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return True
        raise
    return False


def holder(path):
    told = read_json(path)
    told = told if isinstance(told, dict) else {}
    since = told.get("since")
    return {
        "held": True,
        "who": str(told.get("who", "")),
        "since": float(since) if isinstance(since, (int, float)) else None,
        "why": str(told.get("why", "")),
    }


LOOKS = {"disk": look_disk, "deployments": look_deployments, "lock": look_lock}


def section(look, given):
    try:
        return {"value": look(given)}
    except PermissionError as error:
        return {"missing": f"{error.filename}: permission denied", "kind": "refused"}
    except Exception as error:
        return {"missing": f"{type(error).__name__}: {error}", "kind": "unreadable"}


def tell(name, found):
    """Print one section at once: what was told counts even when a later one hangs."""
    line = json.dumps({name: found}, ensure_ascii=False).encode("utf-8", "replace")
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def main():
    given = json.loads(sys.argv[1])
    for name in given["sections"]:
        tell(name, section(LOOKS[name], given))


if __name__ == "__main__":
    main()
