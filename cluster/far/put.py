"""Writes stdin to a file, whole or not at all: first word = JSON {"path": text, "mode": number}.

`~` is the home of the user here; missing parents are made with mode 0700. Prints JSON {"path": text} or
{"error": text}.
"""

import json
import os
import sys


def put(data, path, mode):
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


def main():
    given = json.loads(sys.argv[1])
    try:
        print(json.dumps({"path": put(sys.stdin.buffer.read(), given["path"], given["mode"])}))
    except OSError as error:
        print(json.dumps({"error": f"{error.filename or given['path']}: {error.strerror}"}))
        sys.exit(1)


if __name__ == "__main__":
    main()
