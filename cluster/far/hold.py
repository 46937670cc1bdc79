"""Holds this host's lock while somebody keeps asking for it.

First word: JSON {"data_dir": text, "who": text, "why": text, "silence_s": seconds, "generation": number or null}.
stdout, one JSON a line: first {"held": true, "generation": number}; or {"held": false, "generation": number or null,
"who", "since", "why"} when somebody else has it, or had it since `generation`; or {"held": false, "error": text};
then {"beat": number} for each beat, and {"ended": text} when the lock is released.
stdin, one command a line: `beat NUMBER`, or `audit JSON`, which is appended with the time and who to
`<data_dir>/audit.log`. When stdin ends or is silent for `silence_s`, the lock is released.

The lock is flock(2) on `<data_dir>/lock`, so it ends with this process however it ends. The file says who has it:
{"generation": number, "who": text, "since": unix seconds, "why": text, "pid": number}; once released,
{"generation": number, "last": {"who", "since", "why"}}. Every taker raises the generation. Who lost the lock gives the
generation that it had, and gets the lock only when nobody else took it in between.
"""

import fcntl
import json
import os
import select
import time
from contextlib import suppress

from cluster.far.prelude import CHUNK, Json, given, read_json, say


def take(path: str) -> int | None:
    """The descriptor that holds the lock, or None when somebody else has it (a reader has it for a moment)."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(20):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            time.sleep(0.03)
    os.close(fd)
    return None


def write(fd: int, note: dict[str, Json]) -> None:
    text = json.dumps(note).encode()
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))


def serve(audit: str, who: str, silence_s: float) -> str:
    """Answer beats and write audit lines; why it ended."""
    left, last = b"", time.monotonic()
    while True:
        wait = last + silence_s - time.monotonic()
        if wait <= 0 or not select.select([0], [], [], wait)[0]:
            return "silence"
        data = os.read(0, CHUNK)
        if not data:
            return "end of input"
        last = time.monotonic()
        *lines, left = (left + data).split(b"\n")
        for line in lines:
            command, _, text = line.decode("utf-8", "replace").partition(" ")
            if command == "beat":
                say(beat=int(text))
            elif command == "audit":
                noted = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "who": who, **json.loads(text)}
                # a full disk must not end the lock: under it what was begun is undone
                with suppress(OSError), open(audit, "ab", buffering=0) as file:
                    file.write(json.dumps(noted).encode() + b"\n")


def hold(wanted: dict[str, Json]) -> None:
    data_dir = os.path.expanduser(wanted["data_dir"])
    os.makedirs(data_dir, mode=0o700, exist_ok=True)
    path = os.path.join(data_dir, "lock")
    fd = take(path)
    found = read_json(path)  # empty while it is being written
    for _ in range(10):
        if fd is None and "who" not in found:  # the holder may be writing just now
            time.sleep(0.05)
            found = read_json(path)
    if fd is None or wanted.get("generation") not in (None, found.get("generation")):
        holder = {"who": "unknown", "why": "unknown", **(found if fd is None else found.get("last", found))}
        who, since, why = holder["who"], holder.get("since"), holder["why"]
        say(held=False, generation=found.get("generation"), who=who, since=since, why=why)
        return
    mine = {"who": wanted["who"], "since": time.time(), "why": wanted["why"]}
    # older versions empty the file: with the time in it no generation occurs twice
    generation = max(int(found.get("generation", 0)) + 1, int(time.time()))
    write(fd, {"generation": generation, **mine, "pid": os.getpid()})
    say(held=True, generation=generation)
    why = serve(os.path.join(data_dir, "audit.log"), wanted["who"], float(wanted["silence_s"]))
    write(fd, {"generation": generation, "last": mine})
    os.close(fd)
    say(ended=why)


if __name__ == "__main__":
    os.umask(0o077)
    try:
        hold(given())
    except BrokenPipeError:
        pass
    except OSError as error:
        say(held=False, error=f"{error.filename or 'lock'}: {error.strerror}")
