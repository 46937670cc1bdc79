"""Deadlines and limits are kept on the host; nothing lives on, nobody waits for another."""

from __future__ import annotations

import subprocess
import sys
import time

from loopback import becomes, find_processes

from cluster.argv.far import LOADER, framed, source
from cluster.argv.question import Question
from cluster.hosts.wire import AnswerReader, WireHost, frame_questions


def test_a_hanging_question_ends_at_its_own_deadline_and_delays_no_other(host: WireHost) -> None:
    began = time.monotonic()
    hanging, quick = host.ask([Question(("sleep", "301.25"), timeout_s=1.0), Question(("echo", "quick"))])
    assert time.monotonic() - began < 3
    assert hanging.exit is None
    assert 0.9 < hanging.seconds < 2
    assert (quick.exit, quick.out) == (0, b"quick\n")
    assert quick.seconds < 0.9
    assert not find_processes("301.25")


def test_what_was_said_before_the_deadline_is_kept(host: WireHost) -> None:
    answer = host.ask([Question(("sh", "-c", "echo so far; sleep 302"), timeout_s=0.5)])[0]
    assert (answer.exit, answer.out) == (None, b"so far\n")


def test_a_program_that_ignores_the_first_signal_is_killed_with_its_children(host: WireHost) -> None:
    stubborn = "trap '' TERM; (trap '' TERM; exec sleep 303.5) & while :; do sleep 0.1; done"
    answer = host.ask([Question(("sh", "-c", stubborn), timeout_s=0.3)])[0]
    assert answer.exit is None
    assert answer.seconds < 2.5
    assert becomes(lambda: not find_processes("303.5"), 1.0)


def test_a_program_that_even_sigkill_does_not_end_holds_up_nobody() -> None:
    """As a program in state D; here the signals are taken away from far/run itself."""
    asked = [Question(("sleep", "4.75"), timeout_s=0.2), Question(("echo", "quick"))]
    program = b"import os; os.killpg = lambda *_: None\n" + source("run")
    request = frame_questions(asked, "mark")[len(framed(source("run"))) :]
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LOADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as far:
        assert far.stdin
        assert far.stdout
        far.stdin.write(framed(program) + request)
        far.stdin.flush()
        answers = AnswerReader("mark").feed(far.stdout.read())
        took = time.monotonic() - began
    assert answers
    assert [answer.exit for answer in answers] == [None, 0]
    assert took < 4


def test_a_grandchild_that_keeps_the_output_open_is_not_waited_for(host: WireHost) -> None:
    answer = host.ask([Question(("sh", "-c", "sleep 2 & echo done"))])[0]
    assert (answer.exit, answer.out) == (0, b"done\n")
    assert answer.seconds < 1.5


def test_output_past_the_limit_is_thrown_away_and_said_so(host: WireHost) -> None:
    too_long = Question(("sh", "-c", "head -c 100000 /dev/zero; echo x >&2; exit 4"), limit=1000)
    long, exact = host.ask([too_long, Question(("head", "-c", "1000", "/dev/zero"), limit=1000)])
    assert (long.exit, len(long.out), long.err, long.cut) == (4, 1000, b"x\n", True)
    assert (exact.exit, len(exact.out), exact.cut) == (0, 1000, False)


def test_of_long_output_the_end_is_kept_where_it_is_wanted(host: WireHost) -> None:
    long, short, endless = host.ask(
        [
            Question(("sh", "-c", "seq 1000000; echo x >&2"), limit=10, tail=16),
            Question(("seq", "9"), limit=10, tail=16),
            Question(("sh", "-c", "echo first; exec yes"), limit=10, tail=6, timeout_s=1.5),
        ]
    )
    assert (long.exit, long.err, long.cut) == (0, b"x\n", True)
    assert long.text == "1\n2\n3\n4\n5\n\n[cluster: 6888870 bytes are left out here]\n\n999999\n1000000\n"
    assert (short.out, short.cut) == (b"1\n2\n3\n4\n5\n6\n7\n8\n9\n", False)
    assert (endless.text[:6], endless.text[-4:], endless.cut) == ("first\n", "y\ny\n", True)


def test_endless_output_ends_quickly(host: WireHost) -> None:
    began = time.monotonic()
    out, err = host.ask(
        [
            Question(("yes", "endless"), limit=5000, timeout_s=30),
            Question(("sh", "-c", "exec yes endless >&2"), limit=5000, timeout_s=30),
        ]
    )
    assert time.monotonic() - began < 5
    assert (out.exit, len(out.out), out.cut) == (143, 5000, True)
    assert (err.exit, len(err.err), err.cut) == (143, 5000, True)


def test_both_streams_full_at_once_do_not_block(host: WireHost) -> None:
    both = "import sys; [(sys.stdout.write('o' * 9999), sys.stderr.write('e' * 9999)) for _ in range(100)]"
    answer = host.ask([Question(("python3", "-c", both), stdin=b"i" * (1 << 20))])[0]
    assert (answer.exit, len(answer.out), len(answer.err)) == (0, 999900, 999900)


def test_many_questions_in_one_round_trip(host: WireHost) -> None:
    answers = host.ask([Question(("echo", str(number))) for number in range(60)])
    assert [answer.text for answer in answers] == [f"{number}\n" for number in range(60)]


def test_no_question_is_no_round_trip(host: WireHost) -> None:
    assert host.ask([]) == []
