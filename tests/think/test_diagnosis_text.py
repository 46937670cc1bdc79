"""Texts of any origin: encodings, terminal codes, garbage, size. Nothing breaks, nothing is collected without bound."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from diagnosis_tools import found, sample

from cluster.diagnosis.explain import explain
from cluster.diagnosis.lines import CHUNK
from cluster.diagnosis.rules import literals
from cluster.diagnosis.scan import Source

FAULT = "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out"
OUTPUT = sample("ibdev2netdev_all_down").text


def of_bytes(*pieces: bytes) -> list[str]:
    return [f"{one.level} {one.id}" for one in explain([Source("x", pieces)]).findings]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1"])
def test_encodings(encoding: str) -> None:
    text = f"ein Gruß vorneweg\r\n{OUTPUT}{FAULT}\r\n"
    assert of_bytes(text.encode(encoding)) == ["fault no-link-up", "fault nccl-qp-timeout"]


def test_line_numbers_count_newlines_only() -> None:
    text = b"one\r\ntwo\r\nprogress 1%\rprogress 2%\rdone\r\n20%\r" + FAULT.encode() + b"\r30%\n"
    [finding] = explain([Source("x", [text])]).findings
    assert (finding.line, finding.finding.evidence) == (4, FAULT)


@pytest.mark.parametrize("size", [1, 7, 64, CHUNK])
def test_pieces_of_any_size(size: int) -> None:
    text = (f"healthy line\n{FAULT}\n" * 3).encode()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    [finding] = explain([Source("x", pieces)]).findings
    assert finding.line == 2


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[31mNCCL\x1b[0m WARN Call to \x1b[1mibv_modify_qp\x1b[0m failed with 110 x\x1b[",
        f"\x1b]0;title\x07{FAULT}",
        "a line\n" * 100 + "\0" * 50 + FAULT,
    ],
    ids=["inside words and unfinished", "a title", "some zeros"],
)
def test_odd_characters(text: str) -> None:
    assert found(text) == ["fault nccl-qp-timeout"]


def test_evidence_is_printable() -> None:
    [finding] = explain([Source("x", [b"\x00\x07\x9b" + FAULT.encode() + "\u202eabc".encode()])]).findings
    assert finding.finding.evidence.isprintable()


@pytest.mark.parametrize(
    "data", [random.Random(1).randbytes(1 << 20), bytes(1 << 20), b"\x7fELF" + bytes(range(256)) * 400]
)
def test_garbage_is_said_to_be_no_text(data: bytes) -> None:
    [file] = explain([Source("x", [data])]).files
    assert file.note == "not text"
    assert not file.known


def test_nothing_at_all() -> None:
    for pieces in ([], [b""], [b"\n\n\n"]):
        diagnosis = explain([Source("x", pieces)])
        assert diagnosis.findings == ()
        assert not diagnosis.files[0].known
    assert explain([]).root is None


def endless() -> Iterator[bytes]:
    line = b"error exception NCCL failed connect to \x1b[31m x\n" * 20_000
    while True:
        yield line


def test_endless_output_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.diagnosis.lines.LIMIT", 3 << 20)
    [file] = explain([Source("x", endless())]).files
    assert file.note == "only its beginning was read"


def megabytes(count: int, *, end: bytes = b"\n") -> Iterator[bytes]:
    noise = random.Random(2)
    letters = bytes(noise.choices(b"abcdefghij klmnopqrstuvwxyz", k=CHUNK))
    for at in range(count):
        turned = letters[at * 11 :] + letters[: at * 11]
        yield end.join(turned[place : place + 120] for place in range(0, CHUNK, 120)) + end
    yield FAULT.encode() + b"\n"


@pytest.mark.parametrize("end", [b"\n", b" ", b"\r"], ids=["lines", "one line", "carriage returns"])
def test_memory_and_time_stay_bounded(end: bytes) -> None:
    tracemalloc.start()
    began = time.process_time()
    diagnosis = explain([Source("x", megabytes(5, end=end))])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 << 20
    assert time.process_time() - began < 30
    assert [one.id for one in diagnosis.findings] == ["nccl-qp-timeout"]


def test_outputs_are_recognised_at_both_ends_of_a_long_text() -> None:
    noise = "nothing to see here\n" * 60_000
    assert found(OUTPUT + noise) == ["fault no-link-up"]
    assert found(noise + OUTPUT) == ["fault no-link-up"]


def test_what_a_user_asks_is_no_error_however_long_it_is() -> None:
    asked = "INFO 11-20 10:00:00 [logger.py:41] Received request chatcmpl-1: prompt: '"
    for length in (0, 10, 10_000, 50_000):
        assert found(f"{asked}{'x ' * length}CUDA out of memory', params: SamplingParams(n=1)\n") == []
        assert found(f"{'x ' * length}CUDA out of memory\n") == ["fault cuda-oom"]


@pytest.mark.parametrize(
    ("pattern", "pieces"),
    [
        (r"Using network Socket|NET/Socket : Using \[0\]", ("using network socket", "net/socket : using [0]")),
        (r"failed with (61|22|19)\b", ("failed with ",)),
        (r"exit(ed)? code:? ?\(?137", (" code",)),
        (r"[^a]bcd.*efghij?", ("efghi",)),
        (r"port \d+ is taken", (" is taken",)),
    ],
)
def test_plain_text_of_a_pattern(pattern: str, pieces: tuple[str, ...]) -> None:
    assert literals(pattern) == pieces


def test_a_pattern_without_plain_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no plain text"):
        literals(r"good text|\d+")
