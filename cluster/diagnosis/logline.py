"""One line of a log taken apart: what programs put before a message, the level and time in it, and the message."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone

from cluster.spark.ready import PEER_LOST

_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<time>{_STAMP})[ \t]+(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL|SUCC|ERR|WARN)[ \t]+\S+:\d+ -- ",  # Ray
        rf"\[(?P<time>{_STAMP}) (?P<level>[DIWEF]) \d+ \d+\] (?:\([\w ]+\) )?[\w./-]+:\d+: ",  # Ray's C++ parts
        rf"(?P<time>{_STAMP})[ \t]+(?:[\w.-]+(?:/[\w.-]+)?(?<!Error)(?<!Exception):[ \t]+(?=\S))?",  # docker, our logs
        r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) [\w.-]+ ",  # syslog
        r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) (?:\[?[\w./-]+:\d+\] ?)?",
        r"\(\w[^()]*\b(?:pid|ip)=[^()]*\) |\((?:raylet|autoscaler|pid)\b[^()]*\) ",  # who, in vLLM and Ray
        r"\[(?P<level>[EWIF])\d* (?:\d\d:\d\d:[\d.]+ )?\w+\.\w+:\d+\] (?:Warning: |Exception raised from )?",  # torch
        r"\[?rank ?\d+\]?: ?|\[\d+,\d+\]<std\w+>: ?",
        r"[\w.-]+ *\| ",  # docker compose, and Ray's lines in a rank
        r"(?:[\w.-]+:\d+:\d+ \[\d+\] )?(?:[\w./-]+:\d+ )?NCCL (?P<level>WARN|INFO|ERROR) ",
        r"\[ *\d+\.\d+\] |kernel: |[\w.@-]+\[\d+\]: ",
        r"(?P<level>ERROR|CRITICAL|FATAL|WARNING|INFO|DEBUG)(?:: +|:(?=\S)|[ \t]+(?=\S))",
    )
)
_CODES = {"E": "ERROR", "F": "FATAL", "W": "WARNING", "I": "INFO", "D": "DEBUG", "ERR": "ERROR", "WARN": "WARNING"}
_MOST = 8


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line's parts: the level in words (empty when none), seconds since 1970 (None when none), the message.

    `hearsay`: a rank tells what it heard of another one, which knows better.
    """

    level: str
    time: float | None
    message: str
    of_rank: bool = False
    hearsay: bool = False


def read_line(text: str) -> LogLine:
    """Take a line apart; a line of our rank program has the reason it gives as its message."""
    level, time = "", None
    if text.startswith('{"log":"'):
        return _of_docker(text)
    for _ in range(_MOST):
        found = next((match for prefix in _PREFIXES if (match := prefix.match(text))), None)
        if found is None or not found.end():
            break
        groups = found.groupdict()
        level = groups.get("level") or level
        time = time if time is not None else read_time(groups.get("time") or "")
        text = text[found.end() :]
    rank = _of_rank(text)
    if rank is not None:
        return rank if time is None else replace(rank, time=time)
    return LogLine(_CODES.get(level, level), time, text.strip())


def _of_docker(text: str) -> LogLine:
    """A line of Docker's json-file log: {"log": …, "stream": …, "time": …}."""
    try:
        told = json.loads(text)
        inner = read_line(f"{told['time']} {told['log']}".removesuffix("\n"))
    except (ValueError, KeyError, TypeError):
        inner = LogLine("", None, text)
    return inner


def _of_rank(text: str) -> LogLine | None:
    """A line of far/rank.py: {"cluster": "rank", "stage": …, "t": …, "why": …}."""
    if not text.startswith('{"cluster"'):
        return None
    try:
        told = json.loads(text)
        ended = told["stage"] == "ended" and told.get("exit") != 0
        hearsay = ended and told.get("exit") in PEER_LOST
        return LogLine("ERROR" if ended else "INFO", float(told["t"]), str(told.get("why", "")), True, hearsay)
    except (ValueError, KeyError, TypeError):
        return None


def read_time(text: str) -> float | None:
    """Seconds since 1970; a time without a zone counts as UTC, one without a year as of 1970."""
    for form in ("%m-%d %H:%M:%S", "%b %d %H:%M:%S"):
        try:
            return datetime.strptime(f"1972 {text}", f"%Y {form}").replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    found = re.match(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?$", text)
    if not found:
        return None
    try:
        moment = datetime.strptime(f"{found[1]} {found[2]}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=_zone(found[4]))
    except ValueError:
        return None
    return moment.timestamp() + float(f"0.{found[3] or 0}")


def _zone(text: str | None) -> timezone:
    if not text or text == "Z":
        return UTC
    hours, minutes = int(text[1:3]), int(text[-2:])
    away = timedelta(hours=hours, minutes=minutes)
    return timezone(-away if text[0] == "-" else away)
