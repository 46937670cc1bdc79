"""A disk that is full while this machine writes: one clear error, the old file whole, nothing beside it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench_results import manifest, result, row

from cluster.bench.result import Journal, read_result, store
from cluster.bench.rows import Shape
from cluster.cli.inventory import write_text
from cluster.cli.main import main
from cluster.cli.report import write
from cluster.errors import ClusterError

if TYPE_CHECKING:
    from conftest import Disk

FULL = os.strerror(errno.ENOSPC)
LONG = "x" * 300_000


WRITERS: dict[str, Callable[[Path], object]] = {
    "a result or series": lambda path: store(path, {"recipe": LONG}),
    "a report": lambda path: write(path, LONG),
    "an inventory": lambda path: write_text(path, LONG),
}


@pytest.mark.parametrize("what", WRITERS)
def test_the_old_file_stays(what: str, disk: Disk) -> None:
    old = disk.place / "file.json"
    old.write_text("old")
    disk.fill()
    with pytest.raises(ClusterError) as raised:
        WRITERS[what](old)
    assert FULL in raised.value.what
    assert str(disk.place) in raised.value.what
    assert old.read_text() == "old"
    assert sorted(path.name for path in disk.place.iterdir()) == ["file.json", "filler"]


@pytest.mark.parametrize("what", WRITERS)
def test_a_place_below_a_file(what: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(ClusterError):
        WRITERS[what](tmp_path / "file" / "new.json")


def test_measured_rows_are_kept(disk: Disk) -> None:
    journal = Journal(disk.place, manifest())
    journal.add(row(Shape(64, 8, 0)))
    disk.fill()

    def until_it_fails() -> None:
        for depth in range(1, 200):
            journal.add(row(Shape(64, 8, depth)))

    with pytest.raises(ClusterError) as raised:
        until_it_fails()
    assert FULL in raised.value.what
    assert str(journal.partial) in raised.value.what
    assert raised.value.remedy
    assert read_result(journal.partial).rows[0].shape == Shape(64, 8, 0)
    with pytest.raises(ClusterError):
        journal.finish(result())
    assert journal.partial.exists()
    assert not journal.path.exists()


def test_a_measurement_does_not_begin_where_it_cannot_be_kept(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(ClusterError) as raised:
        Journal(disk.place, manifest())
    assert FULL in raised.value.what
    assert [path.name for path in disk.place.iterdir()] == ["filler"]


@pytest.mark.parametrize("words", ["recipes list", "recipes list --json", "recipes show lab-tiny"])
def test_a_full_standard_output_is_named(words: str) -> None:
    with Path("/dev/full").open("w") as full:
        run = [sys.executable, "-m", "cluster.cli.main", *words.split()]
        done = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert f"error: standard output cannot be written: {FULL} [os-error]" in done.stderr


def test_a_current_directory_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["report"]) == 1
    assert "error: the current directory cannot be read: No such file" in capsys.readouterr().err
