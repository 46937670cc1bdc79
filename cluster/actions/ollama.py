"""Ollama holds memory that a model needs: may its models go first? Only the user can say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cluster.facts import ollama
from cluster.facts.fact import Missing
from cluster.facts.ollama import Loaded
from cluster.facts.seen import Seen
from cluster.hosts.fleet import Fleet
from cluster.plan.checks_memory import check_memory
from cluster.plan.wanted import Wanted
from cluster.screen import Screen

GIB = 1 << 30


def agree_unload(
    wanted: Wanted, seens: Mapping[str, Seen], fleet: Fleet, screen: Screen, *, given: bool, ask: bool
) -> Wanted:
    """What is wanted, with the models to unload where the user agrees: beforehand (`given`), or when asked on a
    terminal, which happens where memory is short without it.

    Nothing is unloaded yet; without consent the checks say what Ollama's memory means.
    """
    short = [name for name in wanted.names if any(one.level == "fault" for one in check_memory(wanted, seens[name]))]
    asked = wanted.names if given else short if ask and screen.interactive else ()
    told_by = models_of(asked, seens, fleet)
    loaded = {name: models for name, models in told_by.items() if models and not isinstance(models, Missing)}
    for name, models in told_by.items():
        if isinstance(models, Missing):
            screen.warn(f"{name}: Ollama has a model loaded, but cannot be asked to let it go: {models.why}")
    if not loaded:
        return wanted
    told = "; ".join(f"{name}: {describe(models)}" for name, models in loaded.items())
    if not given and not screen.confirm(f"Ollama holds memory on {told}: unload first?"):
        return wanted
    return replace(wanted, unload={name: tuple(one.name for one in models) for name, models in loaded.items()})


def models_of(hosts: Sequence[str], seens: Mapping[str, Seen], fleet: Fleet) -> dict[str, tuple[Loaded, ...] | Missing]:
    """By host, the models in Ollama's memory; of these hosts only those are asked where its processes were seen."""
    outcomes = fleet.ask({name: [ollama.question()] for name in hosts if has_ollama(seens[name])})
    return {name: ollama.parse(outcome.value[0]) for name, outcome in outcomes.items() if outcome.value}


def has_ollama(seen: Seen) -> bool:
    """Whether a process of Ollama's has a model loaded."""
    tenants = () if isinstance(seen.tenants, Missing) else seen.tenants
    rows = () if isinstance(seen.gpu_processes, Missing) else seen.gpu_processes
    return any(one.kind == "ollama" for one in tenants) or any("ollama" in row.name for row in rows)


def describe(models: tuple[Loaded, ...]) -> str:
    """`gemma4:26b (17.2 GiB)`."""
    return ", ".join(f"{one.name} ({one.bytes / GIB:.1f} GiB)" for one in models)
