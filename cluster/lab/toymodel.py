"""The toy model, made once by the engine's own transformers."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from cluster.lab.engine import engine, lab_files
from cluster.lab.place import Place
from cluster.lab.program import run, say

MODEL = "cluster-lab/tiny-gemma-4"
FOLDER = "models--" + MODEL.replace("/", "--")


def toy_model(place: Place) -> Path:
    """The model's folder as it lies in a Hugging Face cache; made when it is not there."""
    home = place.cache / "model"
    if not home.exists():
        say("making the toy model (seconds, once)")
        fresh = place.cache / "model.part"
        shutil.rmtree(fresh, ignore_errors=True)
        words = [str(engine(place) / "bin/python3"), str(lab_files() / "model/make_tiny.py"), str(fresh)]
        with tempfile.TemporaryDirectory() as aside:  # torch leaves a folder in /tmp
            env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TMPDIR": aside}
            run(words, env=env, log=place.log, timeout_s=300)
        fresh.rename(home)
    return home / FOLDER
