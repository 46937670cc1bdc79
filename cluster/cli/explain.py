"""`cluster explain FILE… | -`: what is wrong in pasted logs and outputs of commands. No host is asked."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.deploy import evidence
from cluster.deploy.cause import of_finding, place
from cluster.diagnosis.explain import Diagnosis, FileDiagnosis, explain
from cluster.diagnosis.scan import MOST_ERRORS, Source
from cluster.errors import ExitCode, UsageError
from cluster.screen import Screen

STDIN = "-"
QUOTED = re.compile(r" +(?:line \d+|seen): ")


def run(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Carry out `cluster explain`; 4 when something in the texts has failed, known or unknown."""
    for given in args.files:
        path = Path(given)
        if given != STDIN and not path.exists():
            remedy = "cluster explain FILE, or pipe the text into cluster explain -"
            raise UsageError(f"file not found: {given}", code="file-not-found", remedy=remedy)
        if path.is_dir() and not any(file.is_file() for file in path.iterdir()):
            raise UsageError(f"no files in {given}", code="directory-empty")
    try:
        diagnosis = explain(source for given in args.files for source in texts(given))
    except OSError as error:
        what = f"{error.filename or 'standard input'} cannot be read: {error.strerror}"
        raise UsageError(what, code="file-unreadable") from None
    if not any(file.lines for file in diagnosis.files):
        why = next((file.note for file in diagnosis.files if file.note), "empty")
        raise UsageError(f"nothing to explain in {' '.join(args.files)}: {why}", code="no-text")
    for line in view(diagnosis):
        if QUOTED.match(line):
            screen.quote(line)
        else:
            screen.text(line, " " * (len(line) - len(line.lstrip()) + 2))
    screen.document(as_document(diagnosis))
    return ExitCode.REFUSED if diagnosis.failed else ExitCode.DONE


def texts(given: str) -> Iterator[Source]:
    """Standard input, a file, or the files in a directory, such as one of saved evidence. Raises OSError."""
    path = Path(given)
    if given == STDIN:
        yield Source(STDIN, evidence.read(sys.stdin.buffer))
    elif path.is_dir():
        yield from evidence.sources(path)
    else:
        yield Source(given, evidence.pieces(path))


def view(diagnosis: Diagnosis) -> Iterator[str]:
    """For people: of several files the common cause, then each file with what it is and shows, its own cause first."""
    root = diagnosis.root
    if len(diagnosis.files) > 1 and root:
        yield f"root cause: {place(root)}: {root.finding.what} [{root.id}]"
        yield from follows([f"{row.id} ({place(row)})" for row in diagnosis.secondary])
    for file in diagnosis.files:
        name = "standard input" if file.name == STDIN else file.name
        kind = f" ({', '.join(file.read_as)})" if file.read_as else ""
        yield f"{name}{kind}: {file.note or ending(file)}".removesuffix(" ")
        for found in file.findings:
            for line in of_finding(found, found.level, f"line {found.line}" if found.line else "seen"):
                yield f"  {line}"
        yield from follows([f"{row.id} (line {row.line})" for row in file.secondary])
        for row in file.normal:
            yield f"  looks bad, is normal: line {row.line}: {row.finding.what} [{row.id}]"


def ending(file: FileDiagnosis) -> str:
    """What is said of a whole file. That nothing is wrong only of outputs, which are judged by what they show."""
    count = f"{len(file.troubles)}{' or more' if len(file.troubles) >= MOST_ERRORS else ''}"
    where = f"line {file.troubles[0]}" if file.troubles else ""
    several = f"{count} lines look like trouble, the first is {where}"
    look = several if len(file.troubles) > 1 else f"{where} looks like trouble"
    if any(found.id == "unknown" for found in file.findings):
        return f"no rule matches; {look}"
    if file.findings:
        return ""
    if not file.known:
        return f"nothing in it is recognized ({file.lines} lines)"
    if file.read_as and not file.is_log:
        return "nothing wrong"
    return "nothing known to be wrong" + (f"; {look}, and the text goes on after it" if file.troubles else "")


def follows(names: list[str]) -> list[str]:
    return [f"  follows from it: {', '.join(names)}"] if names else []


def as_document(diagnosis: Diagnosis) -> dict[str, Any]:
    """For `--json`: each file as it is by itself, and above them what they show together."""
    root = diagnosis.root
    return {
        "root": {"file": root.file, **root.as_dict()} if root else None,
        "secondary": [{"file": found.file, **found.as_dict()} for found in diagnosis.secondary],
        "files": [
            {
                "file": file.name,
                "known": file.known,
                "read_as": list(file.read_as),
                "findings": [found.as_dict() for found in file.findings],
                "secondary": [found.as_dict() for found in file.secondary],
                "normal": [found.as_dict() for found in file.normal],
                "lines": file.lines,
                "note": file.note,
            }
            for file in diagnosis.files
        ],
    }
