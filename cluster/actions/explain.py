"""`cluster explain FILE… | -`: what is wrong in pasted logs and outputs of commands. No host is asked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from cluster.diagnosis.explain import Diagnosis, FileDiagnosis, explain
from cluster.diagnosis.explanation import Explanation
from cluster.diagnosis.scan import Source
from cluster.diagnosis.text import CHUNK
from cluster.errors import ExitCode, UsageError
from cluster.screen import Screen

STDIN = "-"


def run(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Carry out `cluster explain`; 4 when something in the texts has failed, known or unknown."""
    names = [name for given in args.files for name in below(given)]
    try:
        diagnosis = explain(Source(name, pieces(name)) for name in names)
    except OSError as error:
        raise UsageError(f"{error.filename or 'standard input'} cannot be read: {error.strerror}") from None
    show(diagnosis, screen)
    screen.document(as_document(diagnosis))
    return ExitCode.REFUSED if diagnosis.failed else ExitCode.DONE


def below(given: str) -> list[str]:
    """The file itself, or the files in a directory, such as one of saved evidence. Raises UsageError."""
    path = Path(given)
    if given == STDIN or path.is_file() or path.is_fifo():
        return [given]
    if path.is_dir():
        files = sorted(str(file) for file in path.iterdir() if file.is_file())
        if files:
            return files
        raise UsageError(f"no file in {given}")
    raise UsageError(f"no file {given}", remedy="cluster explain FILE, or pipe the text into cluster explain -")


def pieces(name: str) -> Iterator[bytes]:
    """A file's bytes, a megabyte at a time."""
    if name == STDIN:
        yield from read(sys.stdin.buffer)
        return
    with open(name, "rb") as file:
        yield from read(file)


def read(file: BinaryIO) -> Iterator[bytes]:
    """A stream's bytes to its end."""
    while piece := file.read(CHUNK):
        yield piece


def show(diagnosis: Diagnosis, screen: Screen) -> None:
    """For people: of several files the common cause, then each file with what it is and says, its own cause first."""
    if len(diagnosis.files) > 1 and diagnosis.root:
        screen.line(f"cause of it all: {place(diagnosis.root)}: {diagnosis.root.finding.what} [{diagnosis.root.id}]")
        show_others("follows from it", [f"{row.id} ({place(row)})" for row in diagnosis.secondary], screen)
    for file in diagnosis.files:
        screen.line(heading(file))
        for found in file.findings:
            show_finding(found, screen)
        show_others("follows from it", [f"{row.id} (line {row.line})" for row in file.secondary], screen)
        show_others("looks bad, is normal", [f"{row.id} (line {row.line})" for row in file.normal], screen)


def show_others(label: str, names: list[str], screen: Screen) -> None:
    """What else there is, in one line."""
    if names:
        screen.line(f"  {label}: {', '.join(names)}")


def heading(file: FileDiagnosis) -> str:
    """A file's first line: its name, what it was read as, and how that went."""
    name = "standard input" if file.name == STDIN else file.name
    kind = ", ".join(file.read_as)
    if file.note:
        return f"{name}: {file.note}"
    if not file.known:
        return f"{name}: nothing in it is known ({file.lines} lines)"
    return f"{name}{f' ({kind})' if kind else ''}:{'' if file.findings else ' nothing wrong'}"


def show_finding(found: Explanation, screen: Screen) -> None:
    """Level and name, cause, the very line, remedy."""
    screen.line(f"  {found.level}: {found.finding.what} [{found.id}]")
    where = f"line {found.line}" if found.line else "seen"
    screen.line(f"    {where}: {found.finding.evidence}")
    if found.finding.remedy:
        screen.line(f"    try: {found.finding.remedy}")


def place(found: Explanation) -> str:
    """File and line."""
    return f"{found.file}:{found.line}" if found.line else found.file


def as_document(diagnosis: Diagnosis) -> dict[str, Any]:
    """For `--json`: each file as it is by itself, and above them what they say together."""
    return {
        "root": located(diagnosis.root) if diagnosis.root else None,
        "secondary": [located(found) for found in diagnosis.secondary],
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


def located(found: Explanation) -> dict[str, Any]:
    """A finding with its file."""
    return {"file": found.file, **found.as_dict()}
