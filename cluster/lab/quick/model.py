# mypy: disable-error-code="import-not-found,import-untyped,no-any-return"
"""What is left of a model here: its real tokenizer out of the Hugging Face cache, and words to answer with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

ANSWER = "Paris, says the simulated model, and goes on with words that mean nothing at all"
WORDS = ANSWER.split()


def find(model: str, revision: str) -> Path:
    """The snapshot's folder. Raises FileNotFoundError as an offline vLLM would fail."""
    if model.startswith("/"):
        folder = Path(model)
    else:
        home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser() / "hub"
        repository = home / ("models--" + model.replace("/", "--"))
        ref = repository / "refs" / revision
        folder = repository / "snapshots" / (ref.read_text().strip() if ref.is_file() else revision)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(
            f"{model}: no config.json in {folder} (HF_HUB_OFFLINE={os.environ.get('HF_HUB_OFFLINE', '')})"
        )
    return folder


class Tokenizer:
    """Text to ids and back; bytes where the model brings no tokenizer."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        self._real: Any = None
        if file.exists():
            from tokenizers import Tokenizer as Real

            self._real = Real.from_file(str(file))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids."""
        return self._real.encode(text, add_special_tokens=special).ids if self._real else list(text.encode())

    def decode(self, ids: list[int]) -> str:
        """Text."""
        return self._real.decode(ids) if self._real else bytes(one % 256 for one in ids).decode("utf-8", "replace")


def word(index: int) -> str:
    """The text of the answer's token number `index`."""
    return " " + WORDS[index % len(WORDS)]
