"""What hosts print when they are asked for one of `look.FACTS`, from `samples/facts/<name>.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cluster.argv.question import Answer
from cluster.spark.look import FACTS

BY_QUESTION = {fact.question(): fact.name for fact in FACTS}


@cache
def samples(name: str) -> tuple[tuple[Answer, list[str]], ...]:
    """Answers, each with the findings that it makes; the first is a healthy host's, and makes none."""
    rows: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / f"samples/facts/{name}.yaml").read_text())
    return tuple((Answer(row.get("exit", 0), row["prints"].encode()), row.get("finds", [])) for row in rows)


def healthy(name: str) -> Answer:
    return samples(name)[0][0]
