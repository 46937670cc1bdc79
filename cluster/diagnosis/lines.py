"""Lines of a log: their time, rank and message; whether one that no rule knows is an error."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Literal

from cluster.spark.fact import CONTROL
from cluster.spark.ranks import PEER_LOST

CHUNK = 1 << 20
LIMIT = 512 << 20
"""More than this of one source is not read."""
TAIL_LINES = 8192
"""Outputs of commands are looked for in the first chunk of a source and in so many lines at its end."""
WIDEST = 8192
"""Characters of a line that count."""
LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()  # later ones are no times

_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[^\n]?)")
_ODD = bytes([*range(9), *range(14, 27), *range(28, 32), 127])


Chunk = tuple[int, bytes]
"""The number of the first line, and some whole lines as UTF-8."""


def split(chunk: Chunk) -> Iterator[tuple[int, str]]:
    """Each line with its number, as it can be printed; blank ones are left out."""
    first, lines = chunk
    for number, data in enumerate(lines.split(b"\n"), first):
        yield from ((number, text) for text in map(printable, map(without_user, data.split(b"\r"))) if text.strip())


_OF_USER = re.compile(
    rb"(?:Received request \S+:|Request \S+ details:) prompt: |Generated response \S+(?: \([\w ]*\))?: output: "
    rb"|(?:Receive|Finish): obj="
)


def without_user(data: bytes) -> bytes:
    """A line up to the prompt or answer, where a server logs those: their words are no faults."""
    found = _OF_USER.search(data)
    return data[: found.end()] if found else data


def printable(data: bytes) -> str:
    """A line's bytes as text of bounded length, without control characters."""
    text = data[:WIDEST].decode("utf-8", "replace")
    return (text if text.isprintable() else CONTROL.sub("", text)).rstrip()


def is_text(data: bytes) -> bool:
    """Whether the beginning of a source can be text at all."""
    data = data[: 64 << 10]
    odd = len(data) - len(data.translate(None, _ODD)) + data.decode("utf-8", "replace").count("\ufffd")
    return odd <= len(data) // 10 or _utf16(data) != ""


def chunks(pieces: Iterable[bytes]) -> Iterator[Chunk]:
    """Whole lines, about a megabyte at a time. A line without an end is cut, never collected without bound."""
    number, rest = 1, b""
    for piece in _utf8(iter(pieces)):
        data = rest + piece
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) >= CHUNK else 0)
        whole, rest = data[:end], data[end:]
        if whole:
            yield number, _tidy(whole)
        number += whole.count(b"\n")
    if rest:
        yield number, _tidy(rest)


def _tidy(data: bytes) -> bytes:
    return (_ANSI.sub(b"", data) if b"\x1b" in data else data).replace(b"\r\n", b"\n").rstrip(b"\n")


def _utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """UTF-8 of whatever a text is written in."""
    first = next(pieces, b"").removeprefix(codecs.BOM_UTF8)
    all_of_it = chain([first], pieces)
    if encoding := _utf16(first):
        return (text.encode("utf-8", "replace") for text in codecs.iterdecode(all_of_it, encoding, "replace"))
    return all_of_it


def _utf16(data: bytes) -> str:
    """Which UTF-16 a text begins in, by its byte order mark or since every other byte is zero; empty for none."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = data[:512]
    zeros = sample[1::2].count(0), sample[0::2].count(0)
    if len(sample) >= 16 and max(zeros) > len(sample) // 5 and min(zeros) <= len(sample) // 50:
        return "utf-16-le" if zeros[0] > zeros[1] else "utf-16-be"
    return ""


_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<time>{_STAMP})[ \t]+(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL|SUCC|ERR|WARN)[ \t]+\S+:\d+ -- ",  # Ray
        rf"\[(?P<time>{_STAMP}) (?P<level>[DIWEFC]) \d+ \d+\] (?:\([\w ]+\) )?[\w./-]+:\d+: ",  # Ray's C++ parts
        rf"\[?(?P<time>{_STAMP})\]?[ \t]+(?:[\w.-]+(?:/[\w.-]+)?(?<!Error)(?<!Exception):[ \t]+(?=\S))?",  # docker, we
        r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) [\w.-]+ ",  # syslog
        r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) (?:\[?[\w./-]+:\d+\] ?)?",
        r"- (?:[\w.]+ - )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) - ",  # Python's logging
        r"\(\w[^()]*\b(?:pid|ip)=[^()]*\) |\((?:raylet|autoscaler|pid)\b[^()]*\) ",  # who, in vLLM and Ray
        r"\[(?P<level>[EWIF])\d* (?:\d\d:\d\d:[\d.]+ )?\w+\.\w+:\d+\] (?:Warning: |Exception raised from )?",  # torch
        r"\[?rank ?\d+\]?: ?|\[\d+,\d+\]<std\w+>: ?",
        r"[\w.-]+ *\| ",  # docker compose, and Ray's lines in a rank
        r"(?:[\w.-]+:\d+:\d+ \[-?\d+\] )?(?:[\w./-]+:\d+ )?(?:NCCL |(?<=\d )(?=WARN ))(?:INFO|ERROR|(?P<nccl>WARN)) ",
        r"(?P<kernel>\[ *\d+\.\d+\] |kernel: )|(?P<journal>[\w.@-]+\[\d+\]: )",
        r"(?P<kernel>\[[A-Z][a-z]{2} (?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] )",  # dmesg -T
        r"(?P<level>ERROR|CRITICAL|FATAL|WARNING|INFO|DEBUG)(?:: +|:(?=\S)|[ \t]+(?=\S))",
    )
)
_CODES = {word[0]: word for word in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "FATAL")}
_CODES |= {"ERR": "ERROR", "WARN": "WARNING"}
_MOST = 8
Writer = Literal["", "kernel", "nccl", "journal"]
WRITERS: tuple[Writer, ...] = ("kernel", "nccl", "journal")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line's parts: the level in words (empty when none), seconds since 1970 (None when none), the message.

    `hearsay`: a rank reports what it received of another one, which knows better. `by`: who prints it, where its words
    count otherwise: `kernel`, `nccl` (its WARN is an error), `journal`.
    """

    level: str
    time: float | None
    message: str
    of_rank: bool = False
    hearsay: bool = False
    by: Writer = ""


def read_line(text: str) -> LogLine:
    """Take a line apart; a line of our rank program has the reason it gives as its message."""
    level, time = "", None
    by: Writer = ""
    if text.startswith('{"log":"'):  # Docker's json-file log: {"log": …, "stream": …, "time": …}
        with suppress(ValueError, KeyError, TypeError):
            row = json.loads(text)
            return read_line(f"{row['time']} {row['log']}".removesuffix("\n"))
    for _ in range(_MOST):
        found = next((match for prefix in _PREFIXES if (match := prefix.match(text))), None)
        if found is None or not found.end():
            break
        groups = found.groupdict()
        level = groups.get("level") or level
        by = next((name for name in WRITERS if groups.get(name)), by)
        time = read_time(groups["time"]) if time is None and groups.get("time") else time
        text = text[found.end() :]
    if text.startswith('{"cluster"'):  # far/rank.py: {"cluster": "rank", "stage": …, "t": …, "why": …}
        with suppress(ValueError, KeyError, TypeError):
            row = json.loads(text)
            ended = row["stage"] == "ended" and row.get("exit") != 0
            time = _dated(float(row["t"])) if time is None else time
            hearsay = ended and row.get("exit") in PEER_LOST
            return LogLine("ERROR" if ended else "INFO", time, str(row.get("why", "")), True, hearsay)
    return LogLine("ERROR" if by == "nccl" else _CODES.get(level, level), time, text.strip(), by=by)


def read_time(text: str) -> float | None:
    """Seconds since 1970; a time without a zone counts as UTC, one without a year as of 1972."""
    if text[2:3] == "-" and text[5:6] == " ":  # 05-20 20:35:26, as vLLM prints it
        text = f"1972-{text}"
    for read in (
        datetime.fromisoformat,
        lambda text: datetime.strptime(f"1972 {text}", "%Y %b %d %H:%M:%S"),
        lambda text: datetime.strptime(text, "%b %d %H:%M:%S %Y"),
    ):
        with suppress(ValueError):
            moment = read(text)
            return _dated((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    return None


def _dated(seconds: float) -> float | None:
    """Seconds since 1970, None for what is no time of a log: docker's zero time is in the year 1."""
    return seconds if 0 <= seconds < LATEST else None


_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*(?P<kind>[A-Z]\w*(?:Error|Exception|Failure|Timeout|Exit|Interrupt))(?:: |:?$)"
)
_WARNING = re.compile(r"(?:\S+:\d+: )?\w*Warning: ")
_HARMLESS = re.compile(r"KeyboardInterrupt|SystemExit|CancelledError|GeneratorExit|StopIteration|BrokenPipeError")
_PART_OF_TRACEBACK = re.compile(
    r"Traceback \(most|File \"|~*\^|During handling of|The above exception|$|[\w.\[\], *]+ = "
    r"|(return|raise|await|self)\b"
)
_OTHER = re.compile(
    r"(?:[\w./-]+(?: \d+|\(\d+\)|:\d+(?::\d+)?)?: )?(?:fatal error|fatal|error|panic|FAILED)(?: \[[\w-]+\])?: \S"
    r"|terminate called after|segmentation fault|[Aa]borted \(core|kernel panic|bus error"
    r"|\*\*\* (?:error|aborted)"
    r"|(?:[\w./-]+: )+(?:[\w ]+: )?(?:no such file or directory|permission denied|command not found|cannot \w+)",
    re.IGNORECASE,
)
_ENDED = re.compile(
    r"\bexit(?:ed|s)?\b[^.;]{0,20}?\b(?:code|status)?[:= ]*\(?-?[1-9]\d{0,2}\b|\bstatus=[1-9]\d*/\w+"
    r"|\b(?:died|crashed|killed|core dumped|terminated(?! normally)|segfault|unhandled exception)\b"
    r"|level=(?:error|fatal) |\[(?:error|fatal|crit)\]",
    re.IGNORECASE,
)
"""A process that did not end well, and marks of an error anywhere in a line."""
_DRIVER = re.compile(
    r"(?:mlx[45]\w*|nvidia[\w-]*|NVRM|nvme\w*|pcieport|pci(?:_bus)?|EXT4-fs|XFS|BTRFS|blk_\w+|Buffer|I/O|NETDEV|arm-smmu"
    r"|r81\d\d|ixgbe|ib_\w+|infiniband|rdma_\w+|cma|DMAR?|EDAC|watchdog|workqueue|rcu|BUG|Oops|Internal|Unable|Call"
    r"|[\w.-]+ \S+: (?=NETDEV))\b",
    re.IGNORECASE,
)
_KERNEL = re.compile(
    r"timeout|timed out|\bfail(?:ed|ure)|\berrors?\b(?!=)|err\(-?\d|\berr[:= ]|leak of a|WATCHDOG|fatal|\bhung\b|stuck"
    r"|corrupt|\bBUG:|Oops|Call trace:|lockup|unrecoverable|\bdown\b.*\breset|refused|unable to",
    re.IGNORECASE,
)
_SUSPECT = re.compile(
    r"\b(?:failed|failure|fatal|cannot|can't|could ?n[o']t|unable to|timed out|refused|denied|unreachable"
    r"|crash(?:ed)?|abort(?:ed|ing)?|corrupt(?:ed)?|invalid|unsupported|mismatch)\b",
    re.IGNORECASE,
)
_NO_SUSPECT = re.compile(
    r"\b(?:0|no|without|any) (?:\w+ )?(?:failed|failures?|errors?)\b|\b(?:failed|errors?)(?: count)?[:=] ?0\b|: 0$",
    re.IGNORECASE,
)
_NEEDLES = (
    "error|exception|failure|timeout|timed out|time out|fatal|panic|terminate called|segmentation fault|abort|[crit]"
    "|segfault|critical|no such file or directory|permission denied|cannot |can't |could not|couldn't|unable to|failed"
    "|,000 e 0|,000 f 0|not found|refused|denied|unreachable|crash|corrupt|invalid|unsupported|mismatch|err(-|leak of a"
    "|watchdog|lockup|oops|call trace|died|killed|exit| warn |status=|core dumped|terminated|hung|stuck|[e00|[f00"
)
NEEDLES = (*_NEEDLES.split("|"), '"cluster"')
"""One of these is in every line that `weigh` does not call harmless (every digit a 0)."""


SUSPECT, ERROR, EXCEPTION = 1, 2, 3
QUIET = ("DEBUG", "INFO", "WARNING")


def weigh(line: LogLine) -> int:
    """How much a line looks like trouble in itself, 0 if not at all: the last line of a traceback, one that a program
    marks as an error, words that mostly mean one."""
    quiet = line.level in QUIET
    if found := _EXCEPTION.match(line.message):
        return 0 if quiet or _HARMLESS.match(found["kind"]) else EXCEPTION
    if quiet or line.level == "SUCC" or _PART_OF_TRACEBACK.match(line.message) or _WARNING.match(line.message):
        return 0
    if line.level in ("ERROR", "CRITICAL", "FATAL") or _OTHER.match(line.message) or _ENDED.search(line.message):
        return ERROR
    if line.by == "kernel" or _DRIVER.match(line.message):
        return ERROR if _DRIVER.match(line.message) and _KERNEL.search(line.message) else 0
    if line.by == "journal":  # every host's journal has such words of its desktop and its timers
        return 0
    return SUSPECT if _SUSPECT.search(line.message) and not _NO_SUSPECT.search(line.message) else 0
