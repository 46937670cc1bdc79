"""Every sample, in every form in which it may come: the one right finding, and nothing beside it."""

from __future__ import annotations

import pytest
from diagnosis_tools import Sample, found, lines, sample, samples, told

from cluster.diagnosis.rules import RULES
from cluster.diagnosis.scan import ANY_PIECE, ZEROS

ALL = samples()
TIMED = {"vllm_engine_ready_timeout"}
"""Judged by the seconds between its own lines."""
LOGS = [
    one
    for one in ALL
    if one.right
    and one.name not in TIMED
    and any(rule.search(line) for line in one.text.splitlines() for rule in RULES if rule.level != "normal")
]
HEALTHY_LOG = sample("vllm_start_healthy").text
name = pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
log = pytest.mark.parametrize("one", LOGS, ids=lambda one: one.name)


@name
def test_sample(one: Sample) -> None:
    assert found(one) == ([one.right] if one.right else [])


@name
def test_with_its_header(one: Sample) -> None:
    diagnosis = told(one.with_header)
    assert [f"{row.level} {row.id}" for row in diagnosis.files[0].findings] == ([one.right] if one.right else [])
    for row in diagnosis.files[0].findings:
        assert row.line is not None
        assert row.line > 2
        assert row.finding.evidence in one.with_header.splitlines()[row.line - 1]


@name
def test_is_known_and_says_what_to_do(one: Sample) -> None:
    file = told(one).files[0]
    assert file.known or not one.right
    for row in file.findings:
        assert row.finding.what
        assert row.finding.remedy
        assert "{" not in row.finding.what.replace("{{", "")


@name
def test_crlf_and_no_newline_at_the_end(one: Sample) -> None:
    assert found(one.text.rstrip("\n").replace("\n", "\r\n")) == ([one.right] if one.right else [])


@log
def test_colours_and_times_of_docker(one: Sample) -> None:
    coloured = "".join(
        f"2026-05-20T20:35:2{at % 10}.123456789Z \x1b[36m\x1b[1m{line}\x1b[0m\n"
        for at, line in enumerate(one.text.splitlines())
    )
    assert found(coloured) == [one.right]


@log
def test_in_the_middle_of_a_healthy_log(one: Sample) -> None:
    """The log goes on after it, but reaches nothing new: no wait that ended, no server that answers."""
    quiet = "(EngineCore pid=12) INFO 03-01 10:00:00 [core.py:1] step\n" * 300
    assert found(HEALTHY_LOG + quiet + one.text + quiet) == [one.right]


def test_healthy_lines_are_silent() -> None:
    for line in lines("healthy_lines.txt"):
        assert found(line + "\n") == [], line


def test_healthy_lines_together_are_silent() -> None:
    assert found("\n".join(lines("healthy_lines.txt"))) == []


@pytest.mark.parametrize("row", lines("lines.tsv"), ids=lambda row: row.split("\t")[0])
def test_line_of_a_rule(row: str) -> None:
    """The line has this rule and no other; and it is found however long the text around it is."""
    id, line = row.split("\t")
    rule = next(rule for rule in RULES if rule.search(line))
    assert rule.id == id
    assert ANY_PIECE.search(line.lower().encode().translate(ZEROS))
    expected = [] if rule.level == "normal" else [f"{rule.level} {id}"]
    assert found(HEALTHY_LOG + line + "\n") == expected


def test_every_rule_has_an_example() -> None:
    texts = [line for one in ALL for line in one.text.splitlines()] + [row.split("\t")[1] for row in lines("lines.tsv")]
    shown = {next((rule.id for rule in RULES if rule.search(line)), "") for line in texts}
    assert {rule.id for rule in RULES} - shown == set()
