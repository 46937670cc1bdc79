# mypy: disable-error-code="import-not-found,import-untyped"
"""Makes the toy models: random weights, a tokenizer trained on files at hand. Runs in the engine.

    python make_toys.py FOLDER toys|gpu

Writes FOLDER/models--cluster-lab--… as the Hub's own cache lays them out. The seeds are fixed, so each machine makes
the same.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from shapes import SHAPES, TOYS
from words import save_words

OWNER = "cluster-lab"


def lay_out(files: Path, repository: Path) -> None:
    """blobs by hash, a snapshot of links named by a commit, refs/main: what the Hub's own tool leaves."""
    rows = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files.iterdir())}
    commit = hashlib.sha1(repr(rows).encode()).hexdigest()
    snapshot = repository / "snapshots" / commit
    for folder in (repository / "blobs", repository / "refs", snapshot):
        folder.mkdir(parents=True)
    for name, digest in rows.items():
        shutil.copy(files / name, repository / "blobs" / digest)
        (repository / "blobs" / digest).chmod(0o644)
        (snapshot / name).symlink_to(f"../../blobs/{digest}")
    (repository / "refs/main").write_text(commit)


def main() -> None:
    top = Path(sys.argv[1])
    files = top / "files"
    for name, steps in {"toys": TOYS, "gpu": SHAPES}[sys.argv[2]].items():
        files.mkdir(parents=True)
        save_words(files)
        for step in steps:
            step(files)
        lay_out(files, top / f"models--{OWNER}--{name}")
        shutil.rmtree(files)


if __name__ == "__main__":
    main()
