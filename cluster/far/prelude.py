"""What programs of far/ share; `argv/far.py` sends it before each that imports it, as the module of this name.

Modules that are slow to import (typing, subprocess: 10 ms and more each on a small core) are imported where they are
needed, since most programs end within that time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping
    from typing import Any, BinaryIO, NoReturn

    Json = Any
    Look = Callable[[dict[str, Json]], Json]
else:
    Json = object

CHUNK = 1 << 16
PATIENCE_S = 1.0  # from SIGTERM to SIGKILL, and from SIGKILL to giving up
CONTAINER = re.compile(r"[0-9a-f]{64}")


class NoSection(Exception):
    """A section that cannot be given: why, and the kind: absent or refused."""

    def __init__(self, why: str, kind: str) -> None:
        super().__init__(why)
        self.why, self.kind = why, kind


# What a program is given, and what it prints


def given() -> Json:
    """The JSON value in the program's first word."""
    return json.loads(sys.argv[1])


def emit(document: Json) -> None:
    """One line on stdout at once, so that it counts even when what follows hangs. Foreign bytes become `?`."""
    sys.stdout.buffer.write(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()


def say(**line: Json) -> None:
    """One line on stdout past Python's buffer, from whichever thread."""
    os.write(1, json.dumps(line).encode() + b"\n")


def section(look: Look, wanted: dict[str, Json]) -> dict[str, Json]:
    """{"value": what `look` found}, or {"missing": why, "kind": absent, refused or unreadable}."""
    try:
        return {"value": look(wanted)}
    except NoSection as error:
        return {"missing": error.why, "kind": error.kind}
    except PermissionError as error:
        return {"missing": f"{error.filename}: permission denied", "kind": "refused"}
    except FileNotFoundError as error:
        return {"missing": f"{error.filename}: not found", "kind": "absent"}
    except Exception as error:
        return {"missing": f"{type(error).__name__}: {error}", "kind": "unreadable"}


def emit_sections(looks: Mapping[str, Look]) -> None:
    """A line for each of the sections that the program is given, {name: section}; `root` is / unless given."""
    wanted = {"root": "/", **given()}
    for name in wanted["sections"]:
        emit({name: section(looks[name], wanted)})


# Files


def read_text(path: str) -> str:
    """A file's text without surrounding blanks; raises OSError. Foreign bytes come as surrogates."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read().strip(" \t\n\0")


def read_text_if(path: str) -> str:
    """A file's text, empty when it cannot be read."""
    with suppress(OSError):
        return read_text(path)
    return ""


def read_json(path: str) -> dict[str, Json]:
    """A file's JSON object, empty when it cannot be read or is something else."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(read_text(path)))
    return {}


def absolute(path: str) -> str:
    """A path as this user means it: `~` is the home, and so is where relative ones begin."""
    home = os.path.expanduser("~")
    return os.path.normpath(os.path.join(home, os.path.expanduser(path)))


def pids(proc: str = "/proc") -> list[int]:
    """The ids of all processes, in order."""
    return sorted(int(name) for name in os.listdir(proc) if name.isdigit())


def container_of(pid: int | str, proc: str = "/proc") -> str:
    """The full id of a process's container by its control group; empty outside of one."""
    found = CONTAINER.findall(read_text_if(f"{proc}/{pid}/cgroup"))
    return found[-1] if found else ""


# Programs


def start(*words: str, merged: bool = False) -> subprocess.Popen[bytes]:
    """Start a program without input; `merged` puts its stderr into its stdout."""
    import subprocess

    err = subprocess.STDOUT if merged else subprocess.PIPE
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err)


def finish(program: subprocess.Popen[bytes], limit: int) -> tuple[int, str, str]:
    """(exit code as a shell reports it, stdout, stderr) of a program; each stream up to `limit` bytes."""
    texts = []
    for pipe in filter(None, (program.stdout, program.stderr)):
        texts.append(pipe.read(limit).decode("utf-8", "replace"))
        pipe.close()
    return shell_code(program.wait()), texts[0], texts[-1]


def shell_code(code: int) -> int:
    """An exit code as a shell reports it: 128 + signal for a program that was killed."""
    return code if code >= 0 else 128 - code


def become(argv: list[str], source: int, out: int, err: int) -> NoReturn:
    """In a forked child: turn into the program with these descriptors as its stdin, stdout and stderr."""
    words = [word.encode("utf-8", "surrogateescape") for word in argv]
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for fd, place in ((source, 0), (out, 1), (err, 2)):
            os.dup2(fd, place)
        os.closerange(3, 1024)
        os.execvp(words[0], words)
    except Exception as error:
        code = 127 if isinstance(error, (FileNotFoundError, NotADirectoryError)) else 126
        why = getattr(error, "strerror", None) or str(error)
    try:
        os.write(2, b"%s: %s\n" % (words[0] if words else b"no words", why.encode()))
    finally:
        os._exit(code)


def signal_group(pid: int, number: int) -> None:
    """Signal a program's process group, if it is still there."""
    with suppress(OSError):
        os.killpg(pid, number)


def watch_signals() -> int:
    """A descriptor that becomes readable with each signal; its bytes are the signals' numbers."""
    wake, wake_up = os.pipe()
    os.set_blocking(wake_up, False)
    signal.set_wakeup_fd(wake_up)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return wake


def read_request(stdin: BinaryIO) -> Json:
    """A length line, then that many bytes of JSON; exits when stdin ends before."""
    line = stdin.readline()
    text = stdin.read(int(line)) if line.strip() else b""
    if not text or len(text) != int(line):
        sys.exit(1)
    return json.loads(text)
