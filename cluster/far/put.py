"""Writes stdin to a file, complete or not at all: first word = JSON {"path": text, "mode": number}.

`~` is the home of the user here; missing parents are made with mode 0700. Prints JSON {"path": text} or
{"error": text}.
"""

import os
import sys

from cluster.far.prelude import emit, given


def put(data: bytes, path: str, mode: int) -> str:
    """Write beside the place, then rename; the path written."""
    path = os.path.abspath(os.path.expanduser(path))
    os.umask(0o077)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    beside = f"{path}.{os.getpid()}.new"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, mode)
            file.flush()
            os.fsync(fd)
        os.rename(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
    return path


if __name__ == "__main__":
    wanted = given()
    try:
        emit({"path": put(sys.stdin.buffer.read(), wanted["path"], wanted["mode"])})
    except OSError as error:
        emit({"error": f"{error.filename or wanted['path']}: {error.strerror}"})
        sys.exit(1)
