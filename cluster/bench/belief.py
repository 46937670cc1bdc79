"""Whether an answer is of what was asked: by that model, and of the whole prompt. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from cluster.bench.read import RequestTrace

ANOTHER = "another model answered"
CUT = "the prompt was cut"
LEAST_OF_TEXT = 0.7
"""What a server counts of a text may be less than it was weighed as; of a prompt that it cuts Ollama keeps a half."""

REMEDIES = {
    ANOTHER: "ask the server behind the router with --base-url, or look at the router's fallbacks",
    CUT: "give the server a longer context (Ollama: OLLAMA_CONTEXT_LENGTH, or num_ctx in the Modelfile), or a smaller "
    "--depth",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer is held against. `names`: other names of the model; `exact`: the prompt went out as token ids.

    `alone`: the server has one model and no router shows before it, so another name is only another name.
    """

    model: str
    names: Collection[str] = ()
    alone: bool = True
    exact: bool = True


def same_name(asked: str, given: str) -> bool:
    """One name, or two ways to write it: Ollama adds `:latest`, routers put the provider before a slash."""
    one, other = (name.lower().removesuffix(":latest") for name in (asked, given))
    return one == other or one.rpartition("/")[2] == other.rpartition("/")[2]


def doubt(trace: RequestTrace, asked: Asked, sent_tokens: int) -> RequestTrace:
    """The request as it was, or as failed where its answer is of something else."""
    if trace.error:
        return trace
    return replace(trace, error=_another(trace, asked) or _cut(trace, asked, sent_tokens))


def _another(trace: RequestTrace, asked: Asked) -> str:
    """Who answered in its place; empty when it was the model itself."""
    known = not trace.model or any(same_name(name, trace.model) for name in (asked.model, *asked.names))
    if trace.fallbacks:
        return f"{ANOTHER}: the router gave up on {asked.model}" + ("" if known else f", {trace.model} answered")
    return "" if known or asked.alone else f"{ANOTHER}: {trace.model} instead of {asked.model}"


def _cut(trace: RequestTrace, asked: Asked, sent_tokens: int) -> str:
    """How much of the prompt the server did not read; empty when it read it all."""
    counted = trace.prompt_tokens
    least = sent_tokens if asked.exact else LEAST_OF_TEXT * sent_tokens
    return "" if counted is None or counted >= least else f"{CUT}: the server read {counted} of {sent_tokens} tokens"


def remedy_of(error: str) -> str:
    """What to do about a doubtful answer; empty for any other error."""
    return next((remedy for begin, remedy in REMEDIES.items() if error.startswith(begin)), "")
