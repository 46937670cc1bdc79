"""A place of its own for a test that reads or types."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with nothing in it, in a home with nothing else."""
    (tmp_path / "desk").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLUSTER_INVENTORY", raising=False)
    monkeypatch.chdir(tmp_path / "desk")
    return tmp_path / "desk"
