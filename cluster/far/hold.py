"""Holds this host's lock while somebody keeps asking for it.

First word: JSON {"data_dir": text, "who": text, "why": text, "silence_s": seconds, "generation": number or null}.
stdout, one JSON a line: first {"held": true, "generation": number}; or {"held": false, "generation": number or null,
"who", "since", "why"} when somebody else has it, or had it since `generation`; or {"held": false, "error": text};
then {"beat": number} for each beat, and {"ended": text} when the lock is given back.
stdin, one command a line: `beat NUMBER`, or `audit JSON`, which is appended with the time and who to
`<data_dir>/audit.log`. When stdin ends or is silent for `silence_s`, the lock is given back.

The lock is flock(2) on `<data_dir>/lock`, so it ends with this process however it ends. The file's text says who has it:
{"generation": number, "who": text, "since": unix seconds, "why": text, "pid": number}; when it is given back,
{"generation": number, "last": {"who", "since", "why"}}. Every taker raises the generation. Who lost the lock gives the
generation that it had, and gets the lock only when nobody else took it in between.
"""

import fcntl
import json
import os
import select
import sys
import time


def say(**line):
    os.write(1, json.dumps(line).encode() + b"\n")


def take(path):
    """The descriptor that holds the lock, or None when somebody else has it (who only looks has it for a moment)."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(20):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            time.sleep(0.03)
    os.close(fd)
    return None


def read(path):
    """What is in the lock's file; {} when that is nothing of ours."""
    try:
        with open(path) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("generation", 0), int) else {}


def write(fd, note):
    text = json.dumps(note).encode()
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))


def told(found, note):
    """What is said of another holder."""
    unknown = {"who": "unknown", "since": None, "why": "unknown"}
    note = note if isinstance(note, dict) else {}
    return {"held": False, "generation": found.get("generation"), **{key: note.get(key, unknown[key]) for key in unknown}}


def holder(path):
    """What the holder wrote; asked again for a moment, since it may be writing just now."""
    for _ in range(10):
        found = read(path)
        if "who" in found:
            break
        time.sleep(0.05)
    return told(found, found)


def raised(found):
    """The next generation. A version that knows of none empties the file: time keeps what was from coming again."""
    return max(found.get("generation", 0) + 1, int(time.time()))


def serve(audit, who, silence_s):
    """Answer beats and write audit lines; why it ended."""
    left, heard = b"", time.monotonic()
    while True:
        wait = heard + silence_s - time.monotonic()
        if wait <= 0 or not select.select([0], [], [], wait)[0]:
            return "silence"
        data = os.read(0, 65536)
        if not data:
            return "end of input"
        heard = time.monotonic()
        *lines, left = (left + data).split(b"\n")
        for line in lines:
            obey(line.decode("utf-8", "replace"), audit, who)


def obey(line, audit, who):
    command, _, text = line.partition(" ")
    if command == "beat":
        say(beat=int(text))
    elif command == "audit":
        noted = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "who": who, **json.loads(text)}
        try:
            with open(audit, "ab", buffering=0) as file:
                file.write(json.dumps(noted).encode() + b"\n")
        except OSError:
            pass  # a full disk must not end the lock, in whose care what was begun is put back


def hold(given):
    data_dir = os.path.expanduser(given["data_dir"])
    os.makedirs(data_dir, mode=0o700, exist_ok=True)
    path = os.path.join(data_dir, "lock")
    fd = take(path)
    if fd is None:
        say(**holder(path))
        return
    found = read(path)
    if given.get("generation") not in (None, found.get("generation")):
        say(**told(found, found.get("last", found)))
        return
    mine = {"who": given["who"], "since": time.time(), "why": given["why"]}
    generation = raised(found)
    write(fd, {"generation": generation, **mine, "pid": os.getpid()})
    say(held=True, generation=generation)
    why = serve(os.path.join(data_dir, "audit.log"), given["who"], float(given["silence_s"]))
    write(fd, {"generation": generation, "last": mine})
    os.close(fd)
    say(ended=why)


def main():
    os.umask(0o077)
    try:
        hold(json.loads(sys.argv[1]))
    except BrokenPipeError:
        pass
    except OSError as error:
        say(held=False, error=f"{error.filename or 'lock'}: {error.strerror}")


if __name__ == "__main__":
    main()
