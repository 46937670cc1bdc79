"""All cases in order, and how they are driven over the load client: asks what they yield, keeps what came of each."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean
from typing import Any

from cluster.bench.endpoint import fetch
from cluster.bench.loader import Ask, Loader, Round
from cluster.config.find import did_you_mean
from cluster.errors import ClusterError, UsageError
from cluster.probe import problems, service, text, tools, vision
from cluster.probe.ask import OPTIONAL_FIELDS, Answer, Case, CaseResult, Subject, failed, read_answer, skipped, without

CASES: tuple[Case, ...] = (
    *text.CASES,
    *service.CASES,
    *tools.CASES,
    *text.REASONING_CASES,
    *vision.CASES,
    *problems.CASES,
)
QUICK = tuple(case for case in CASES if case.quick)
"""What `up` asks: few tokens each."""


def choose(only: Sequence[str], *, quick: bool = False, full: bool = False) -> tuple[Case, ...]:
    """The cases to ask: by names of cases and groups, or by how much is wanted.

    Raises UsageError for a name that is none, with the nearest.
    """
    groups = tuple(dict.fromkeys(case.group for case in CASES))
    known = (*groups, *(case.id for case in CASES))
    names = [name.strip() for word in only for name in word.split(",")]
    for name in names:
        if name not in known:
            all_known = f"groups: {', '.join(groups)}; cases: {', '.join(case.id for case in CASES)}"
            remedy = did_you_mean(name, known) or all_known
            raise UsageError(f"case not found: {name!r}", code="case-not-found", remedy=remedy)
    if names:
        return tuple(case for case in CASES if case.id in names or case.group in names)
    return QUICK if quick else tuple(case for case in CASES if full or not case.long)


TIMEOUT_S = 600.0
"""Of one request: 2048 tokens of a 31B on one Spark take 300 s."""

RANDOM = "the weights are random: what it says means nothing"


@dataclass(slots=True)
class Probed:
    """What a server was asked and what came of it, as far as it went.

    `refused`: fields that it would not have, left out since. `gone`: why nothing more could be asked; `left` cases were
    not, for that reason or because the time was over.
    """

    subject: Subject
    results: list[CaseResult] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    left: tuple[str, ...] = ()
    gone: str = ""

    def count(self, outcome: str) -> int:
        """Cases with this outcome; answers to problems are the model's and count elsewhere."""
        return sum(one.verdict.outcome == outcome and not one.verdict.score for one in self.results)

    @property
    def failed(self) -> list[CaseResult]:
        """What the server got wrong."""
        return [one for one in self.results if one.verdict.outcome == "fail" and not one.verdict.score]

    @property
    def scored(self) -> list[CaseResult]:
        """Problems that were put to the model and judged."""
        return [one for one in self.results if one.verdict.score]

    def score(self) -> dict[str, Any] | None:
        """What the answers to them were, and what one cost on average; None when none was answered."""
        if not self.scored:
            return None
        scores = Counter(one.verdict.score for one in self.scored)
        tokens = [one.verdict.tokens for one in self.scored if one.verdict.tokens is not None]
        return {
            "right": scores["right"],
            "wrong": scores["wrong"],
            "cut_off": scores["cut off"],
            "of": len(self.scored),
            "seconds_each": round(mean(one.seconds for one in self.scored), 3),
            "tokens_each": round(mean(tokens)) if tokens else None,
        }

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "subject": asdict(self.subject),
            "passed": self.count("pass"),
            "failed": len(self.failed),
            "not_applicable": self.count("not applicable"),
            "score": self.score(),
            "cases": [one.document() for one in self.results],
            "refused_fields": self.refused,
            "not_asked": list(self.left),
            "gone": self.gone,
        }


@dataclass(slots=True)
class Asker:
    """Sends single requests and reads their answers; learns which fields the server will not have.

    `lenient`: an answer that is not there in time raises TimeoutError, since the time was short.
    """

    loader: Loader
    timeout_s: float = TIMEOUT_S
    lenient: bool = False
    refused: list[str] = field(default_factory=list)
    sent: int = 0
    last: Answer | None = None

    def ask(self, ask: Ask) -> Answer:
        """One answer; a refused field is left out, and the request sent again."""
        for name in self.refused:
            ask = without(ask, name)
        while True:
            answer = self._send(ask)
            if answer.status not in (400, 422) or ask.body is None:
                return answer
            named = (one for one in OPTIONAL_FIELDS if one in ask.body and re.search(rf"\b{one}\b", answer.error))
            name = next(named, "")
            if not name:
                return answer
            self.refused.append(name)
            ask = without(ask, name)

    def _send(self, ask: Ask) -> Answer:
        self.sent += 1
        record = self.loader.send(Round(f"probe {self.sent}", (ask,), timeout_s=self.timeout_s))
        if self.lenient and record.records[0].how == "timeout":
            raise TimeoutError
        self.last = replace(read_answer(record.records[0]), left_out=tuple(self.refused))
        return self.last


def run_probe(
    loader: Loader,
    subject: Subject,
    cases: Sequence[Case],
    *,
    on_case: Callable[[Case], None] = lambda case: None,
    on_result: Callable[[CaseResult], None] = lambda result: None,
    timeout_s: float = TIMEOUT_S,
    budget_s: float = math.inf,
    lenient: bool = False,
    into: Probed | None = None,
) -> Probed:
    """Ask the cases in their order; `into` holds the results so far when something raises.

    No case is begun after `budget_s`. `lenient`: what is not answered in time is not judged. Raises ClusterError when
    the load client ends.
    """
    probed, asker, started = into or Probed(subject), Asker(loader, timeout_s, lenient), time.monotonic()
    probed.refused = asker.refused
    for number, case in enumerate(cases):
        if time.monotonic() - started > budget_s:
            probed.left = tuple(one.id for one in cases[number:])
            break
        on_case(case)
        result = _ask_case(case, subject, asker)
        probed.results.append(result)
        on_result(result)
        if asker.last and asker.last.status is None:
            [answer] = fetch(loader, Ask("/v1/models"), name="gone")
            if answer.status is None:
                probed.gone = answer.problem or "no answer"
                probed.left = tuple(one.id for one in cases[number + 1 :])
                break
    return probed


def _ask_case(case: Case, subject: Subject, asker: Asker) -> CaseResult:
    if subject.dummy and case.judges_text:
        return CaseResult(case, skipped(RANDOM), 0.0)
    started, before = time.monotonic(), asker.sent
    talk, answer = case.talk(subject), None
    try:
        ask = next(talk)
        while True:
            answer = asker.ask(ask)
            ask = talk.send(answer)
    except StopIteration as end:
        verdict = end.value or failed("the case came to no verdict", answer)
    except TimeoutError:
        verdict = skipped(f"no whole answer within {asker.timeout_s:.0f} s: not judged")
    except ClusterError:
        raise
    except Exception as error:  # an answer of a shape that nobody thought of is no reason to lose the others
        verdict = failed(f"the answer could not be judged ({type(error).__name__}: {error})", answer)
    return CaseResult(case, verdict, time.monotonic() - started, asker.sent - before)
