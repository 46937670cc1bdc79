"""What tests of inventories and recipes share: files, refusals, documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.main import main
from cluster.errors import UsageError


def write(path: str, text: str) -> Path:
    file = Path(path).expanduser()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def refusal(of: Callable[..., object], *args: Any) -> UsageError:
    """The error of a call."""
    with pytest.raises(UsageError) as caught:
        of(*args)
    return caught.value


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The one JSON document of a command that succeeds."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)
