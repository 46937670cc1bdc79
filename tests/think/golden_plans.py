"""Whole plans as `--dry-run` prints them, and the files they are compared with.

UPDATE_TRANSCRIPTS=1 writes the files anew; read the difference before it is committed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from docker_lines import SPELLED_OUT, shorten
from plan_tools import GIB, spec_for

from cluster.deploy.plan import Plan, plan_up
from cluster.deploy.rank import Ingredients
from cluster.deploy.spec import PROGRAMS, Start, decide
from cluster.spark.deployments import deployments
from cluster.spark.fabric import pair
from cluster.spark.image import Inside
from cluster.spark.look import Seen
from cluster.spark.request import Wanted

FOLDER = Path(__file__).parents[1] / "transcripts/plans"
INSIDE = Inside("3.12.3", "0.32.0", "2.56.0", "5.6.0", "2.27.3", True, ("GPU 0",), "", "/opt/packages")


def plan(of: Wanted, seens: Sequence[Seen]) -> Plan:
    """What `up` would do on these hosts."""
    spec = spec_for(of)
    decision = decide(spec, deployments(seens))
    assert isinstance(decision, Start)
    hosts = {one.host: one for one in seens}
    before = dict.fromkeys(of.names, 115 * GIB)
    return plan_up(Ingredients(of, spec, hosts, pair(seens), INSIDE, before, "t0ken" * 8), decision)


def compare(name: str, lines: Iterable[str], recipe: str = "toy") -> None:
    """The lines are those of the golden file."""
    file, text = FOLDER / f"{name}.txt", plain(lines, recipe)
    text = text if file == SPELLED_OUT else shorten(text)
    if os.environ.get("UPDATE_TRANSCRIPTS"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def plain(lines: Iterable[str], recipe: str) -> str:
    """What follows from the text of far/ made equal, so that a change there is no change here."""
    text = "\n".join(lines) + "\n"
    text = re.sub(rf"{re.escape(recipe)}-[0-9a-f]{{8}}", f"{recipe}-FINGERPRINT", text)
    text = re.sub(r'"rank_program":"[0-9a-f]{64}"', '"rank_program":"DIGEST"', text)
    return re.sub(rf"(/({'|'.join(PROGRAMS)})\.py mode 0644) \(\d+ bytes\)", r"\1 (N bytes)", text)
