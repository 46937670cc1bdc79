"""`docker run` lines of plans in transcripts: one file has the command with all of its words, the others what differs.

So that one more flag for every container changes one transcript, and nothing less is proven: the words that a rank
needs no longer, needs otherwise, or needs besides are all shown.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

SPELLED_OUT = Path(__file__).parent / "transcripts/plans/ray.txt"
"""Rank 0 of two under Ray, as `--dry-run` prints it."""
PREFIX = "docker run --detach "


def pairs(line: str) -> dict[str, list[str]]:
    """The words of a `docker run` by what they set: an option with its value, or by place behind the options.

    Environment and labels are set by name, mounts by target.
    """
    words, at = shlex.split(line)[2:], 0
    found: dict[str, list[str]] = {}
    while at < len(words) and words[at].startswith("--"):
        size = 2 if at + 1 < len(words) and not words[at + 1].startswith("--") else 1
        flag, value = words[at], words[at + 1] if size == 2 else ""
        named = re.search(r"(?<=target=)[^,]+", value) if flag == "--mount" else re.match(r"[\w.-]+(?==)", value)
        key = f"{flag} {named[0]}" if named else flag
        assert key not in found, f"{key} twice"
        found[key] = words[at : at + size]
        at += size
    return found | {f"word {number}": [word] for number, word in enumerate(words[at:])}


def shorten(text: str) -> str:
    """A transcript in which each `docker run` of a rank says what differs from the first one in SPELLED_OUT."""
    reference = pairs(next(line for line in SPELLED_OUT.read_text().splitlines() if line.startswith(PREFIX)))

    def difference(line: str) -> str:
        own = pairs(line)
        without = [shlex.join(words) for key, words in reference.items() if key not in own]
        other = [shlex.join(words) for key, words in own.items() if words != reference.get(key)]
        rows = [*(f"#   without {row}" for row in without), *(f"#   with {row}" for row in other)]
        return "\n".join([f"{PREFIX}… as in plans/{SPELLED_OUT.name}", *rows])

    return "\n".join(difference(line) if line.startswith(PREFIX) else line for line in text.split("\n"))
