"""Which toy replaces a recipe's model in the lab, and what else of the recipe a CPU does not have, with why."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import yaml

from cluster.errors import UsageError
from cluster.lab.engine import lab_files

Replaced = tuple[str, str]  # KEY=VALUE of --set, why

ROWS = yaml.safe_load((lab_files() / "stand_ins.yaml").read_bytes())
EVERYWHERE: tuple[Replaced, ...] = tuple(ROWS["everywhere"].items())
WITHOUT_AVX512 = ("vllm.kv-cache-dtype=", "this CPU has no AVX-512, which vLLM's FP8 cache on x86 requires")


def cpu_flags() -> frozenset[str]:
    """What this machine's CPU can do: `flags` of /proc/cpuinfo; empty on other architectures."""
    rows = (row.partition(":") for row in Path("/proc/cpuinfo").read_text().splitlines())
    return frozenset(next((words for name, _colon, words in rows if name.strip() == "flags"), "").split())


@dataclass(frozen=True, slots=True)
class StandIn:
    """A toy, what is replaced besides the model and `EVERYWHERE`, and what the toy is not."""

    toy: str
    replaced: tuple[Replaced, ...] = ()
    note: str = ""
    fp8_cache: bool = False

    def all_replaced(self, flags: Collection[str]) -> tuple[Replaced, ...]:
        """With what a CPU of these flags lacks; one without flags is no x86 and has an FP8 cache."""
        lacks = self.fp8_cache and flags and not {"avx512f", "amx_tile"} & set(flags)
        return (*EVERYWHERE, *((WITHOUT_AVX512,) if lacks else ()), *self.replaced)


STAND_INS = {
    recipe: StandIn(**row | {"replaced": tuple(row.get("replaced", {}).items())})
    for recipe, row in ROWS["recipes"].items()
}
NO_TOY: dict[str, str] = ROWS["no_toy"]
"""Recipes that nothing stands in for, with why."""


def words_for(recipe: str) -> str:
    """What follows `cluster up` or `swap`: the recipe and its `--set`s. Raises UsageError: no such recipe, no toy."""
    if recipe in NO_TOY:
        what = f"no toy stands in for {recipe}: {NO_TOY[recipe]}"
        raise UsageError(what, code="toy-missing", remedy="cluster up RECIPE --dry-run shows its plan on real hosts")
    if recipe not in STAND_INS:
        near = difflib.get_close_matches(recipe, STAND_INS, 1, 0.0)[0]
        what = f"no toy stands in for {recipe!r}; did you mean {near}?"
        raise UsageError(what, code="recipe-unknown", remedy="cluster lab toy")
    made = STAND_INS[recipe]
    sets = [f"model=cluster-lab/{made.toy}", *(text for text, _why in made.all_replaced(cpu_flags()))]
    return shlex.join([recipe, *(word for text in sets for word in ("--set", text))])


def table() -> list[str]:
    """A line for each recipe; below it what is replaced for it alone. Last, what is replaced for all."""
    width = max(map(len, STAND_INS))
    rows: list[str] = []
    for recipe, made in STAND_INS.items():
        rows.append(f"{recipe:<{width}}  {made.toy}" + (f"  ({made.note})" if made.note else ""))
        own = made.all_replaced(cpu_flags())[len(EVERYWHERE) :]
        rows += [f"  --set {text}  {why}" for text, why in own]
    rows += [f"{recipe:<{width}}  none ({why})" for recipe, why in NO_TOY.items()]
    return [*rows, "all of them", *(f"  --set {text}  {why}" for text, why in EVERYWHERE)]
