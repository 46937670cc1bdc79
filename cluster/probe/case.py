"""A case: a short conversation with a server, and what is concluded from it. Pure: it asks by `yield`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cluster.argv.vllm import AUTO, read_length, serve_flags, weights_of
from cluster.bench.loader import Ask
from cluster.probe.ask import Answer

if TYPE_CHECKING:
    from cluster.bench.endpoint import Served


def subject_of(served: Served, recipe: Mapping[str, Any] | None, words: Sequence[str] = ()) -> Subject:
    """The server as the cases see it. `recipe` as in a deployment's spec; `words`: what was given to vLLM behind it."""
    if recipe is None:
        return Subject(served.model, served.max_tokens, engine=served.owner)
    flags = serve_flags(recipe["vllm"], words)
    try:
        length = read_length(flags.get("max-model-len"))
    except ValueError:
        length = AUTO
    return Subject(
        served.model,
        served.max_tokens,
        configured=None if length == AUTO else length,
        tools=_on(flags, "enable-auto-tool-choice"),
        reasoning=_on(flags, "reasoning-parser"),
        vision=_sees(recipe.get("architecture", ""), flags),
        engine=served.owner,
        dummy=weights_of(recipe["weights"], flags) == "dummy",
    )


def _on(flags: Mapping[str, Any], name: str) -> bool:
    return flags.get(name) not in (None, False, "")


def _sees(architecture: str, flags: Mapping[str, Any]) -> bool | None:
    """Whether it takes pictures: by its class's name (`…ForCausalLM` has text only), unless they are turned off."""
    limit = flags.get("limit-mm-per-prompt")
    if _on(flags, "language-model-only") or (isinstance(limit, Mapping) and limit.get("image") == 0):
        return False
    if architecture.endswith("ForCausalLM"):
        return False
    return True if architecture.startswith("Gemma4") and architecture.endswith("ForConditionalGeneration") else None


Outcome = Literal["pass", "fail", "not applicable"]
Score = Literal["", "right", "wrong", "cut off"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a case. `why` is ours, `said` the server's own words; `defect`: the known fault it looks like.

    `remedy`: what to do, where that is known. `score`: what the answer to a problem is worth: a wrong one is the
    model's and no fault of the server, one cut off at its limit is neither; `tokens`: what it cost, thoughts included.
    """

    outcome: Outcome
    why: str = ""
    said: str = ""
    defect: str = ""
    remedy: str = ""
    score: Score = ""
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Defect:
    """A known fault of a server: who reported it, what it looks like, what to do."""

    name: str
    what: str
    remedy: str


ROUTER = "ask the server itself, not the router before it, with --base-url; then look at the router's fallbacks"
NEWER = "an image with vLLM 0.20 or later; in an older one the patched file, by the recipe's `mounts`"
"""Remedies of more than one defect."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The server as a case sees it: the model's name in its API, its context limit, what its recipe promises.

    `limit`: tokens that /v1/models tells, None when it tells none; `configured`: max-model-len of the recipe, None
    without one. `tools`, `reasoning`, `vision`: whether the recipe says that it has them, None without a recipe: then
    a case finds out. `engine`: what the server calls itself (vllm, llamacpp, ollama), empty when unknown.
    `dummy`: its weights are random, so that what it says means nothing.
    """

    model: str
    limit: int | None = None
    configured: int | None = None
    tools: bool | None = None
    reasoning: bool | None = None
    vision: bool | None = None
    engine: str = ""
    dummy: bool = False


Talk = Generator[Ask, Answer, Verdict]


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `id`: words with hyphens, unique. `source`: who met the fault that it looks for.

    `quick`: also asked at the end of `up`. `long`: asked with --full only. `judges_text`: it needs a model that says
    something sensible, so it is not asked of random weights.
    """

    id: str
    title: str
    group: str
    talk: Callable[[Subject], Talk]
    source: str
    quick: bool = False
    long: bool = False
    judges_text: bool = True


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case and its verdict."""

    case: Case
    verdict: Verdict
    seconds: float
    requests: int = 0

    def document(self) -> dict[str, Any]:
        """For --json."""
        scored = {"score": self.verdict.score, "tokens": self.verdict.tokens} if self.verdict.score else {}
        return {
            "id": self.case.id,
            "title": self.case.title,
            "group": self.case.group,
            "outcome": self.verdict.outcome,
            "why": self.verdict.why,
            "said": self.verdict.said,
            "defect": self.verdict.defect,
            "remedy": self.verdict.remedy,
            "seconds": round(self.seconds, 3),
            "requests": self.requests,
            **scored,
        }


PASSED = Verdict("pass")


def failed(why: str, answer: Answer | None = None, *, defect: Defect | None = None, remedy: str = "") -> Verdict:
    """The server did what it should not. A known defect brings its own remedy."""
    known = f"{defect.name}: {defect.what}" if defect else ""
    return Verdict("fail", why, answer.said() if answer else "", known, remedy or (defect.remedy if defect else ""))


def skipped(why: str, answer: Answer | None = None, *, defect: Defect | None = None, remedy: str = "") -> Verdict:
    """The server does not have what the case is about, and need not; or it is limited in a known way."""
    return replace(failed(why, answer, defect=defect, remedy=remedy), outcome="not applicable")


MARKS = {"pass": "✓", "fail": "✗", "not applicable": "–"}
STYLES = {"pass": None, "fail": "red", "not applicable": "dim"}


def lines(result: CaseResult) -> list[tuple[str, str | None]]:
    """A case in lines: what it asked and what came of it; below, why, the server's words, what is known, what to do."""
    verdict = result.verdict
    head = f"  {MARKS[verdict.outcome]} {result.case.id}: {result.case.title}"
    tokens = f", {verdict.tokens:,} tokens" if verdict.tokens else ""
    head += f" ({result.seconds:.1f} s{tokens})" if result.requests else ""
    head += f": {verdict.why}" if verdict.why else ""
    rows = {"said": " ".join(verdict.said.split()), "known": verdict.defect, "try": verdict.remedy}
    below = [f"{label}: {text}" for label, text in rows.items() if text]
    if verdict.outcome == "pass":
        return [(head, STYLES["pass"])]
    return [(head, None if verdict.score else STYLES[verdict.outcome]), *((f"      {text}", None) for text in below)]
