"""Golden text of what a user sees: one file a story, written again with UPDATE_TRANSCRIPTS=1."""

from __future__ import annotations

import os
import re
from pathlib import Path

from docker_lines import shorten
from typed import Ran

from cluster.config.find import shipped
from cluster.deploy.spec import PROGRAMS

FOLDER = Path(__file__).parents[1] / "transcripts"
STAGES = "connect and lock|look|check|fetch|try|stop the old|memory back|apply|prove|ask|probe|wait for Ray and vLLM"
PROGRAM = rf"(/({'|'.join(PROGRAMS)})\.py mode 0644) \(\d+ bytes\)"
VARYING = (
    (PROGRAM, r"\1 (N bytes)"),
    (r'"rank_program":"[0-9a-f]{64}"', '"rank_program":"DIGEST"'),
    (re.escape(str(shipped("docs/runbooks"))), "docs/runbooks"),
    (r"evidence/\d{8}-\d{6}-\d+-", "evidence/TIME-"),
    (r"\b(toy|other|toy-mp)-[0-9a-f]{8}\b", r"\1-FINGERPRINT"),
    (r"\b[0-9a-f]{12}(…|\b)", "DIGEST"),
    (r"since \d\d:\d\d:\d\d \(\d+ s\)", "since TIME (N s)"),
    (rf"^({STAGES}|cluster's own share) +[\d.]+$", r"\1 N"),
    (rf"^({STAGES}) N\n", ""),
    (r"^stage +s$", "stage s"),
    (r"asked \d+ short questions: .*$", "asked N short questions: …"),
    (r"^(  [✓✗–] .*?) \(\d+\.\d s(, [\d,]+ tokens)?\)", r"\1 (N s\2)"),
    (r"; \d+\.\d s and ([\d,]+) tokens each", r"; N s and \1 tokens each"),
    (r"asked from (\S+)$", "asked from HOST"),
    (r"\((\d+ checks|checks between hosts need two), [\d.]+ s\)$", "(CHECKS, N s)"),
)


def plain(text: str, place: Path) -> str:
    text = text.replace(str(place), "PLACE")
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return "\n".join(line.rstrip() for line in text.splitlines())


def written(words: tuple[str, ...], ran: Ran, place: Path) -> str:
    parts = [f"$ cluster {' '.join(words)}", *filter(None, (plain(ran.out, place), plain(ran.err, place)))]
    return shorten("\n".join([*parts, f"exit {ran.code}"]) + "\n")


def compare(name: str, text: str) -> None:
    """Fail when the text is not that of tests/transcripts/<name>.txt."""
    file = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_TRANSCRIPTS"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert file.exists(), f"{file} is not there: UPDATE_TRANSCRIPTS=1 writes it; read it before it is committed"
    assert text == file.read_text()
