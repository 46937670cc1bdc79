"""`cluster report`: Markdown, CSV, JSON and one HTML page from stored results. No host is asked."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cluster import __version__
from cluster.bench.compare import newest, read_files
from cluster.bench.page import Page, page_of, render
from cluster.bench.result import results_dir, write_whole, writing
from cluster.bench.scaling import Entry
from cluster.bench.tables import to_csv, to_markdown
from cluster.errors import ClusterError, ExitCode, UsageError
from cluster.screen import Screen

FORMS = (".html", ".md", ".csv", ".json")


def run(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Carry out `cluster report`; 2 when a file cannot be read."""
    outputs = [Path(text).expanduser() for text in args.output]
    for path in outputs:
        if path.suffix not in FORMS:
            what = f"-o {path}: unknown file type {path.suffix or '(none)'}"
            raise UsageError(what, code="file-type-unknown", remedy=f"name a file that ends in {', '.join(FORMS)}")
    directory = results_dir(args.results)
    paths = list(dict.fromkeys(find(name, directory) for name in args.files)) or newest(directory, screen.warn)
    try:
        entries, series = read_files(paths)
    except ClusterError as error:
        raise UsageError(error.what, code=error.code, remedy=error.remedy) from error
    if not entries:
        raise UsageError(f"no measurements in {', '.join(map(str, paths))}", code="no-results")
    for path in outputs:
        spare(path, paths)
    page = page_of(entries, series, f"cluster {__version__}")
    if not outputs and not screen.json_mode:
        screen.line(markdown(page).rstrip("\n"))
        outputs = [paths[-1].with_name(paths[-1].name.partition(".json")[0].removesuffix(".series") + ".html")]
    content = document(page, entries)
    forms: dict[str, Callable[[], str]] = {
        ".html": lambda: visible(render(page)),
        ".md": lambda: markdown(page),
        ".csv": lambda: visible(as_csv(entries)),
        ".json": lambda: json.dumps(content, indent=2) + "\n",
    }
    for path in outputs:
        write(path, forms[path.suffix]())
        screen.note(f"written: {path}")
    screen.document(content | {"written": [str(path) for path in outputs]})
    return ExitCode.DONE


def find(name: str, directory: Path) -> Path:
    """The file that is meant: a path, or a name in the directory of results. Raises UsageError."""
    for path in (Path(name).expanduser(), directory / name):
        if path.exists():
            return path
    raise UsageError(f"file not found: {name}, here or in {directory}", code="file-not-found")


def spare(path: Path, inputs: Sequence[Path]) -> None:
    """Raises UsageError when to write `path` would destroy what the report is of, or another measurement; an earlier
    report, which has tables, may be replaced."""
    try:
        held = json.loads(path.read_bytes()) if path.suffix == ".json" else {}
        measured = isinstance(held, dict) and bool({"schema", "series"} & held.keys()) and "tables" not in held
    except (OSError, ValueError):
        measured = False
    if measured or (path.exists() and any(path.samefile(one) for one in inputs)):
        what = f"-o {path}: the file holds a measurement, and is not overwritten"
        raise UsageError(what, code="file-exists", remedy="write to another file with -o FILE")


def write(path: Path, text: str) -> None:
    """Raises UsageError when it cannot be written."""
    with writing(path, "-o FILE"):
        write_whole(path, text.encode())


def markdown(page: Page) -> str:
    """The page as Markdown: title, warnings, the numbers that matter, all tables but the conditions."""
    figures = [f"- **{one.value}** {one.what}" + (f" ({one.detail})" if one.detail else "") for one in page.figures]
    parts = [f"# {page.title}", page.subtitle, *(f"> **{line}**" for line in page.banners), "\n".join(figures)]
    for table in page.tables:
        if table.title != "conditions":
            notes = "\n".join(f"- {note}" for note in table.notes)
            parts += [f"## {table.title}", to_markdown(table) if table.rows else notes]
    text = "\n\n".join(part for part in parts if part) + "\n"
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", visible(text))


def visible(text: str) -> str:
    """A text without what moves a terminal's cursor or colors it: names in a result may hold anything."""
    return re.sub(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]", "?", text)


def as_csv(entries: Sequence[Entry]) -> str:
    """llama-benchy's columns and ours, then what distinguishes the measurements."""
    texts = []
    for entry in entries:
        manifest = entry.result.manifest
        known = {key: getattr(manifest, key) for key in ("recipe", "tp", "nodes", "backend", "simulated")}
        known |= {"timestamp": entry.result.timestamp, "file": entry.path.name if entry.path else ""}
        texts.append(to_csv(entry.result, label=entry.label, **known))
    return texts[0] + "".join(text.partition("\n")[2] for text in texts[1:])


def document(page: Page, entries: Sequence[Entry]) -> dict[str, Any]:
    """One measurement as llama-benchy writes it with ours added; several in a list of such; then the comparisons."""
    results = [entry.result.document() | {"label": entry.label} for entry in entries]
    known = results[0] if len(results) == 1 else {"reports": results}
    return known | {
        "title": page.title,
        "warnings": list(page.banners),
        "tables": [table.document() for table in page.tables if table.title != "conditions"],
    }
