"""An exception that nobody expected: one line, details in a file without secrets, what was begun taken back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fake_host import FakeProcess
from machine import Desk, DeskHost
from typed import UP, Ran, Typed

from cluster import crash
from cluster.argv.question import Answer, Question

PLANTED = "hf_planted_in_a_message_4711"


def details(place: Path) -> list[Path]:
    return sorted((place / "state/cluster/internal-errors").glob("*.txt"))


def check_line(ran: Ran, place: Path, kind: str) -> str:
    """One error of this kind in place of a traceback; the details that it names."""
    assert ran.code == 1, ran.all
    assert "Traceback" not in ran.all
    [file] = details(place)
    assert ran.error["error"].startswith(f"internal error: {kind}")
    assert ran.error["where"] == f"details in {file}"
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    assert "Traceback (most recent call last)" in text
    assert kind in text
    return text


def breaks(host: DeskHost, when: Callable[[Question], bool], bug: Exception) -> None:
    """From now on the answer to such a question is an exception of ours."""
    answer = host.handler

    def broken(question: Question) -> Answer:
        if when(question):
            raise bug
        return answer(question)

    host.handler = broken


def always(host: DeskHost) -> None:
    breaks(host, lambda question: True, KeyError("what"))


COMMANDS = ("up toy", "down", "status", "doctor", "pull toy", "swap toy", "logs", "probe", "bench", "exec -- true")


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_ends_in_a_line(words: str, cluster: Typed, desk: Desk, place: Path) -> None:
    always(desk.hosts["spark2"])
    check_line(cluster(*words.split()), place, "KeyError: 'what'")


def test_a_broken_pipe_that_is_not_the_readers_is_an_error(cluster: Typed, desk: Desk) -> None:
    """Only `| head`, who has read enough, ends a command with 0 and without a word."""
    breaks(desk.hosts["spark2"], lambda question: True, BrokenPipeError(32, "Broken pipe"))
    ran = cluster.ends(1, "status")
    assert ran.error["error"] == "BrokenPipeError: [Errno 32] Broken pipe [os-error]"


def test_a_series_goes_on_to_its_end(cluster: Typed, desk: Desk) -> None:
    always(desk.hosts["spark2"])
    ran = cluster("scaling", "toy", "--yes")
    assert ran.code != 0
    assert "Traceback" not in ran.all


@pytest.mark.parametrize("at", range(1, 4))
def test_what_a_start_began_is_taken_back(at: int, cluster: Typed, desk: Desk, place: Path) -> None:
    before = desk.state()
    runs = [0]

    def is_nth(question: Question) -> bool:
        runs[0] += question.changes
        return question.changes and runs[0] == at

    breaks(desk.hosts["spark2"], is_nth, ZeroDivisionError("nobody thought of it"))
    ran = cluster(*UP)
    check_line(ran, place, "ZeroDivisionError: nobody thought of it")
    assert ("rolled back" in ran.error) == (at > 1), "the first only tries the image"
    assert desk.serving() == {}
    for name, state in desk.state().items():
        assert state.containers == before[name].containers


def test_secrets_are_taken_out(cluster: Typed, desk: Desk, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the environment, of -e, and of a key file, wherever a message or the command line holds them."""
    monkeypatch.setenv("MY_TOKEN", "environment-4712")
    Path("key").write_text("in-a-file-4713\n")
    said = f"{PLANTED} environment-4712 in-a-file-4713 word-4714 in-a-file-4715"
    breaks(desk.hosts["spark1"], lambda question: True, ValueError(said))
    Path("hub").write_text("in-a-file-4715\n")
    words = ("-e", f"HF_TOKEN={PLANTED}", "--api-key-file", "key", "-e", "OTHER_SECRET=word-4714")
    ran = cluster(*UP, *words, "--hub-token-file=hub", "--debug")
    text = "".join(file.read_text() for file in details(place))
    assert "ValueError" in text
    for secret in said.split():
        assert secret not in ran.all + text


def test_debug_prints_the_traceback_beside_the_one_document(cluster: Typed, desk: Desk) -> None:
    always(desk.hosts["spark1"])
    ran = cluster.ends(1, "status", "--debug", "--json")
    assert "Traceback (most recent call last)" in ran.err
    [error] = json.loads(ran.out)["errors"]
    assert (error["exit"], error["code"]) == (1, "internal")


def test_details_that_cannot_be_saved(cluster: Typed, desk: Desk, place: Path) -> None:
    (place / "state").write_text("a file where a folder should be")
    always(desk.hosts["spark1"])
    ran = cluster.ends(1, "status")
    assert "Traceback" not in ran.all
    assert ran.error["where"].startswith("the details could not be saved: ")


class Broken(FakeProcess):
    """A process whose lines break whoever reads them."""

    def lines(self):
        raise IndexError("in a thread")


def test_a_thread_of_ours_that_ends_is_not_waited_for(cluster: Typed, desk: Desk, place: Path) -> None:
    cluster.must(*UP)
    desk.hosts["spark2"].starter = lambda argv, stdin: Broken()
    check_line(cluster("logs", "--follow"), place, "IndexError: in a thread")


# what needs a process of its own


def child(place: Path, program: str, *words: str, **env: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        timeout=60,
        cwd=place,
        env={**os.environ, "XDG_STATE_HOME": str(place / "state"), **env},
    )
    return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


MAIN = "import sys; from cluster.cli.main import main; sys.exit(main())"


@pytest.mark.parametrize("missing", ["cluster.cli.fit", "cluster.cli.recipes", "pydantic", "rich.console", "rich"])
def test_what_cannot_be_imported(missing: str, place: Path) -> None:
    words = ("recipes", "list") if missing == "cluster.cli.recipes" else ("fit", "gemma-4-31b-fp8")
    check_line(
        child(place, f"import sys; sys.modules[{missing!r}] = None; {MAIN}", *words), place, "ModuleNotFoundError"
    )


def test_a_screen_that_cannot_print(place: Path) -> None:
    broken = "import cluster.screen\ndef broken(*_, **__): raise RuntimeError('the screen')\n"
    broken += "cluster.screen.Screen.line = cluster.screen.Screen.error = broken\n"
    ran = child(place, broken + MAIN, "fit", "gemma-4-31b-fp8")
    check_line(ran, place, "RuntimeError: the screen")


def test_ctrl_c_while_it_is_loaded(place: Path) -> None:
    loads = "import cluster.cli.main as c\ndef parse(words): raise KeyboardInterrupt\nc.parse = parse\n"
    ran = child(place, loads + MAIN, "status")
    assert (ran.code, ran.errors()) == (130, [["error: interrupted [interrupted]"]])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [("fit", "gemma-4-31b-fp8"), ("fit", "gemma-4-31b-fp8", "--json")])
def test_a_full_disk_is_no_success(words: Sequence[str], place: Path) -> None:
    command = [sys.executable, "-c", MAIN, *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, cwd=place)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr


def test_streams_that_are_closed(place: Path) -> None:
    command = f'exec "{sys.executable}" -c "{MAIN}" recipes list >&- 2>&- <&-'
    assert subprocess.run(["sh", "-c", command], timeout=60, cwd=place).returncode == 0


# every encoding

LOCALES = {
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0"},
    "ascii": {"PYTHONIOENCODING": "ascii:strict"},
    "latin-1": {"PYTHONIOENCODING": "latin-1:strict"},
    "utf-8": {"PYTHONIOENCODING": "utf-8:strict"},
}


EXPLAIN = "explain café-日本.log"
WRITTEN = [("C", words) for words in ("up --help", "recipes list", "fit gemma-4-31b-fp8", "fit gemma-4-31b-fp8 --json")]


@pytest.mark.parametrize(("locale", "words"), [*WRITTEN, *((locale, EXPLAIN) for locale in LOCALES)])
def test_every_encoding_is_written_to(locale: str, words: str, place: Path) -> None:
    Path("café-日本.log").write_text("[Errno 98] Address already in use → 8000 ✓\n", encoding="utf-8")
    ran = child(place, MAIN, *words.split(), **LOCALES[locale])
    assert "internal error" not in ran.err
    assert "UnicodeEncodeError" not in ran.all
    assert ran.code in (0, 4), ran.all
    assert not words.endswith("--json") or json.loads(ran.out)
    assert locale not in ("C", "ascii") or ran.all.isascii()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("✓ ✗ – …", "+ x - ..."),
        ("1 → 2 ± 3", "1 -> 2 +- 3"),
        ("Größe, café", "Gro?e, cafe"),
        ("日本", "??"),
        ("a\udcffb", "a?b"),
    ],
)
def test_symbols_in_plain_letters(text: str, shown: str) -> None:
    crash.take_every_text()
    assert text.encode("ascii", "cluster").decode() == shown
