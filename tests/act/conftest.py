"""A desk with two Sparks, an inventory and a recipe in a fresh folder, and `cluster` as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine import Desk
from typed import UP, Typed, write_files


@pytest.fixture
def desk() -> Desk:
    """Two Sparks with one cable between them."""
    return Desk("spark1", "spark2")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's working directory, home and state, with inventory and recipes in it."""
    write_files(tmp_path)
    for name in ("HF_TOKEN", "HF_HOME", "CLUSTER_INVENTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cluster(desk: Desk, place: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    """`cluster("up", "toy")` → exit code and what was printed."""
    return Typed(desk, place, capsys)


@pytest.fixture
def running(cluster: Typed, desk: Desk) -> str:
    """A pair of ours serves: its name."""
    cluster.must(*UP)
    return desk.deployment()
