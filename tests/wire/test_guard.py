"""far/guard.py alone: its rules over time, what it does without, and that it neither grows nor forgets."""

import json
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_rank import FAR, MUCH, QUIET, guarding, have_available
from waiting import eventually

PROGRAM = FAR / "guard.py"


@pytest.fixture
def guard(tmp_path: Path) -> Any:
    made = runpy.run_path(str(PROGRAM))["Guard"](guarding(tmp_path, serving_s=10))
    made.serving = True
    return made


def press(folder: Path, percent: float) -> None:
    (folder / "pressure").write_text(QUIET.replace("full avg10=0.00", f"full avg10={percent:.2f}"))


def test_while_serving_only_what_lasts_counts(guard: Any, tmp_path: Path) -> None:
    have_available(tmp_path, 0.5)
    assert [guard.look(t)[0] for t in (0.0, 5.0, 9.9)] == [""] * 3
    have_available(tmp_path, 1.5)
    assert guard.look(9.95) == ("", 0.0)
    have_available(tmp_path, 0.5)
    assert guard.look(10.0) == ("", 0.0)
    why, missing = guard.look(20.0)
    assert (why, missing) == ("0.5 GiB available, 1.0 GiB required while serving, for 10 s", 0.5)


def test_while_serving_less_than_half_counts_at_once(guard: Any, tmp_path: Path) -> None:
    have_available(tmp_path, 0.45)
    assert guard.look(0.0)[0] == "0.4 GiB available, 0.5 GiB required at any moment while serving"


def test_pressure_counts_when_it_lasts_and_little_is_available(guard: Any, tmp_path: Path) -> None:
    have_available(tmp_path, 2)
    press(tmp_path, 55)
    assert guard.look(0.0) == ("", 0.0)
    assert guard.look(10.0) == (
        "2.0 GiB available, all programs wait for memory 55 % of the time, 20 % allowed while serving, for 10 s",
        0.0,
    )
    press(tmp_path, 19)
    assert guard.look(20.0) == ("", 0.0)


@pytest.mark.parametrize("serving", [False, True])
def test_a_full_page_cache_ends_nothing(guard: Any, tmp_path: Path, serving: bool) -> None:
    """No byte is free, all of it is cache, and another container waits for its own limit."""
    guard.serving = serving
    (tmp_path / "meminfo").write_text(f"MemFree: 0 kB\nCached: 104857600 kB\n{MUCH}")
    press(tmp_path, 99)
    assert {guard.look(float(t)) for t in range(0, 100, 5)} == {("", 0.0)}


def test_0_turns_a_limit_off(guard: Any, tmp_path: Path) -> None:
    guard.limits |= {"loading_gib": 0, "serving_gib": 0, "pressure_percent": 0}
    have_available(tmp_path, 0)
    press(tmp_path, 99)
    for guard.serving in (False, True):
        assert {guard.look(float(t)) for t in range(0, 100, 5)} == {("", 0.0)}


@pytest.fixture
def started(far_python: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program, as fast as it can, on a kernel without pressure and a host without swap."""
    limits = guarding(tmp_path, period_s=0, pressure=str(tmp_path / "none"))
    (tmp_path / "meminfo").write_text(MUCH.partition("SwapTotal")[0])
    words = [far_python, "-I", "-S", "-W", "error", str(PROGRAM), json.dumps(limits)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_what_is_missing_is_said_once_and_nothing_grows(started: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert started.stdin
    assert started.stderr
    line = started.stderr.readline().decode()
    assert line.startswith("memory guard: works without ")
    assert f"memory pressure ({tmp_path / 'none'}: No such file or directory)" in line
    assert "swap (none)" in line
    begun, resident = rounds(started.pid), resident_kib(started.pid)
    eventually(lambda: rounds(started.pid) > begun + 10_000, 15, "10,000 rounds", every_s=0.05)
    assert resident_kib(started.pid) == resident
    started.stdin.close()
    assert started.wait(5) == 0
    assert started.stderr.read() == b""


def rounds(pid: int) -> int:
    """One read a round, where there is no pressure to read; the first ones are those of the start."""
    rows = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(rows["syscr"])


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_only_what_is_below_its_parent_is_ended(tmp_path: Path) -> None:
    """Started by a program that is not the test itself, since everything below that is killed."""
    sleeps = subprocess.Popen(["sleep", "60"])
    limits = guarding(tmp_path)
    have_available(tmp_path, 1)
    parent = (
        "import subprocess, sys; s = subprocess.Popen(['sleep', '61']);"
        f"g = subprocess.Popen([sys.executable, '-I', '-S', {str(PROGRAM)!r}, sys.argv[1]], stdin=subprocess.PIPE,"
        " stdout=subprocess.PIPE); print(g.wait(), s.wait())"
    )
    start, words = time.monotonic(), [sys.executable, "-c", parent, json.dumps(limits)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.stdout, time.monotonic() - start < 5, sleeps.poll()) == ("77 -9\n", True, None)
    sleeps.kill()
    sleeps.wait()
