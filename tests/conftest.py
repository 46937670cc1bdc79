"""Signals as a person's shell hands them down, whatever started the tests.

A runner in the background starts its children with SIGINT ignored, one under nohup with SIGHUP ignored, and what is
ignored is inherited: the commands under test would be deaf to Ctrl-C and to a closed terminal.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import interpreters
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # `fit` asks no hub but those of tests
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which interpreters the programs of far/ were tried under (`-q` leaves the header out, so at the end)."""
    if any("tests/wire" in str(word) or str(word) == "tests" for word in terminalreporter.config.args):
        terminalreporter.write_line(f"far/ under Python {', '.join(interpreters.found())}")


@pytest.fixture
def plain_user() -> Iterator[Path]:
    """A directory of a user who is not root. Where root runs the tests, everything is that user's until the end."""
    place = Path(tempfile.mkdtemp(prefix="cluster-test-"))
    root = os.geteuid() == 0
    if root:
        nobody = pwd.getpwnam("nobody")
        os.chown(place, nobody.pw_uid, nobody.pw_gid)
        os.setresuid(nobody.pw_uid, nobody.pw_uid, 0)
    try:
        yield place
    finally:
        if root:
            os.setresuid(0, 0, 0)
        for folder, _, _ in os.walk(place):
            os.chmod(folder, 0o700)
        shutil.rmtree(place)


@dataclass(frozen=True)
class Disk:
    """A small file system of its own at `place`."""

    place: Path

    def fill(self) -> None:
        """Leave no byte: neither a page nor a file's name has room."""
        with (self.place / "filler").open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """256 KiB that can be filled."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(place)], check=True)
    try:
        yield Disk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
