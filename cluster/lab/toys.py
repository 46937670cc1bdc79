"""The toy models, made once by the engine's own transformers."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from cluster.lab.engine import engine, lab_files
from cluster.lab.place import Place
from cluster.lab.program import run, say

MODEL = "cluster-lab/tiny-gemma-4"
FOLDER = "models--" + MODEL.replace("/", "--")


def toy_models(place: Place) -> Path:
    """The folder with the models as they lie in a Hugging Face cache; made once for each way to make them."""
    home = place.cache / f"models-{_recipe_hash()[:12]}"
    if not home.exists():
        say("making the toy models (seconds, once)")
        fresh = place.cache / "models.part"
        shutil.rmtree(fresh, ignore_errors=True)
        words = [str(engine(place) / "bin/python3"), str(lab_files() / "model/make_toys.py"), str(fresh)]
        with tempfile.TemporaryDirectory() as aside:  # torch leaves a folder in /tmp
            own = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": aside}
            run(words, env={**os.environ, **own}, log=place.log, timeout_s=300)
        fresh.rename(home)
    return home


def _recipe_hash() -> str:
    files = sorted((lab_files() / "model").glob("*.py"))
    return hashlib.sha256("".join(path.read_text() for path in files).encode()).hexdigest()
