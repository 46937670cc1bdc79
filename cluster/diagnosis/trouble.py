"""Does a line that no rule knows tell of an error? Careful on the side of silence: a healthy log has none."""

from __future__ import annotations

import re
from enum import IntEnum

from cluster.diagnosis.logline import LogLine

_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*(?P<kind>[A-Z]\w*(?:Error|Exception|Failure|Timeout|Exit|Interrupt))(?:: |:?$)"
)
_HARMLESS = re.compile(r"KeyboardInterrupt|SystemExit|CancelledError|GeneratorExit|StopIteration|BrokenPipeError")
_PART_OF_TRACEBACK = re.compile(
    r"Traceback \(most|File \"|~*\^|During handling of|The above exception|$|[\w.\[\], *]+ = "
    r"|(return|raise|await|self)\b"
)
_OTHER = re.compile(
    r"(?:[\w./-]+(?: \d+)?: )?(?:fatal error|fatal|error|panic|FAILED)(?: \[[\w-]+\])?: \S"
    r"|terminate called after|segmentation fault|[Aa]borted \(core|kernel panic|bus error"
    r"|level=(?:error|fatal) |\[(?:error|fatal|crit)\]|\*\*\* (?:error|aborted)|!!!!!!! segfault|unhandled exception"
    r"|(?:[\w./-]+: )+(?:[\w ]+: )?(?:no such file or directory|permission denied|command not found|cannot \w+)",
    re.IGNORECASE,
)
NEEDLES = (
    "error", "exception", "failure", "timeout:", "fatal", "panic", "terminate called", "segmentation fault",
    "aborted (", "[crit]", "segfault", "no such file or directory", "permission denied", ": cannot ", "failed: ",
    ",000 e 0", ",000 f 0", "critical", '"cluster"', "not found",
)  # fmt: skip
"""One of these is in every line that `weigh` calls an error (every digit a 0)."""


class Weight(IntEnum):
    """How much a line says about what went wrong."""

    NOTHING = 0
    ERROR = 1
    EXCEPTION = 2


def weigh(line: LogLine) -> Weight:
    """Whether a line is an error in itself: the last line of a traceback, or one that a program marks as an error."""
    found = _EXCEPTION.match(line.message)
    if found:
        harmless = _HARMLESS.match(found["kind"]) or line.level in ("DEBUG", "INFO", "WARNING")
        return Weight.NOTHING if harmless else Weight.EXCEPTION
    if line.level in ("DEBUG", "INFO", "WARNING", "SUCC") or _PART_OF_TRACEBACK.match(line.message):
        return Weight.NOTHING
    if line.level in ("ERROR", "CRITICAL", "FATAL") or _OTHER.match(line.message):
        return Weight.ERROR
    return Weight.NOTHING
