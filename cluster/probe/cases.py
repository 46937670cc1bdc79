"""All cases in order, how they are driven over the load client, and the few questions that `up` asks."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean
from threading import Timer
from typing import Any

from cluster.bench.endpoint import fetch, find_model
from cluster.bench.loader import Ask, Batch, Loader
from cluster.bench.target import client_in
from cluster.config.find import did_you_mean
from cluster.errors import ClusterError, InterruptedByUser, UsageError
from cluster.hosts.protocol import Host
from cluster.probe import messages, problems, service, text, tools, vision
from cluster.probe.ask import (
    OPTIONAL_FIELDS,
    Case,
    CaseOver,
    CaseResult,
    ProbedServer,
    Reply,
    Verdict,
    probed_server,
    read_reply,
    skip,
    without,
)
from cluster.screen import Screen
from cluster.spark.deployments import HOME
from cluster.spark.server import Server

CASES: tuple[Case, ...] = (
    *(*text.CASES, *service.CASES, *messages.CASES, *tools.CASES),
    *(*text.REASONING_CASES, *vision.CASES, *problems.CASES),
)
QUICK = tuple(case for case in CASES if case.quick)  # what `up` asks: few tokens each


def choose(only: Sequence[str], *, quick: bool = False, full: bool = False) -> tuple[Case, ...]:
    """The cases to ask: by names of cases and groups, or all, but for `long` ones unless `full`. Raises UsageError."""
    groups, ids = dict.fromkeys(case.group for case in CASES), [case.id for case in CASES]
    names = [name.strip() for word in only for name in word.split(",")]
    for name in names:
        if name not in (*groups, *ids):
            remedy = did_you_mean(name, [*groups, *ids]) or f"groups: {', '.join(groups)}; cases: {', '.join(ids)}"
            raise UsageError(f"case not found: {name!r}", code="case-not-found", remedy=remedy)
    if names:
        return tuple(case for case in CASES if case.id in names or case.group in names)
    return QUICK if quick else tuple(case for case in CASES if full or not case.long)


RANDOM = "the weights are random: what it says means nothing"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of one request, and after which no case is begun. `lenient`: a reply that is late is not judged."""

    request_s: float = 600.0  # 2048 tokens of a 31B on one Spark take 300 s
    begin_s: float = math.inf
    lenient: bool = False


@dataclass(slots=True)
class Probed:
    """What a server was asked and what came of it, as far as it went.

    `refused`: fields that it refuses, left out since. `gone`: why nothing more could be asked; the cases `left` were
    not, for that reason or because the time was over.
    """

    server: ProbedServer
    results: list[CaseResult] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    left: tuple[str, ...] = ()
    gone: str = ""

    def count(self, outcome: str) -> int:
        """Cases with this outcome; answers to problems are the model's and count elsewhere."""
        return sum(one.verdict.outcome == outcome and not one.verdict.score for one in self.results)

    @property
    def failed(self) -> list[CaseResult]:
        return [one for one in self.results if one.verdict.outcome == "fail" and not one.verdict.score]

    @property
    def scored(self) -> list[CaseResult]:
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
        return {
            "subject": asdict(self.server),
            "passed": self.count("pass"),
            "failed": len(self.failed),
            "not_applicable": self.count("not applicable"),
            "score": self.score(),
            "cases": [one.document() for one in self.results],
            "refused_fields": self.refused,
            "not_asked": list(self.left),
            "gone": self.gone,
        }


def run_probe(
    loader: Loader,
    probed: Probed,
    cases: Sequence[Case],
    limits: Limits = Limits(),
    show: Callable[[Case, CaseResult | None], None] = lambda case, result: None,
) -> Probed:
    """Ask the cases in their order; `probed` holds the results so far when something raises.

    `show` is called when a case begins, without a result, and when it ends. Raises ClusterError when the load client
    ends.
    """
    started = time.monotonic()
    for number, case in enumerate(cases):
        if time.monotonic() - started > limits.begin_s:
            probed.left = tuple(one.id for one in cases[number:])
            break
        show(case, None)
        result, last = _ask_case(case, loader, probed, limits)
        probed.results.append(result)
        show(case, result)
        if last and last.status is None:
            [answer] = fetch(loader, Ask("/v1/models"), name="gone")
            if answer.status is None:
                probed.gone = answer.problem or "no answer"
                probed.left = tuple(one.id for one in cases[number + 1 :])
                break
    return probed


def _ask_case(case: Case, loader: Loader, probed: Probed, limits: Limits) -> tuple[CaseResult, Reply | None]:
    if probed.server.dummy and case.judges_text:
        return CaseResult(case, Verdict("not applicable", RANDOM), 0.0), None
    started, sent, verdict = time.monotonic(), 0, Verdict()
    reply: Reply | None = None
    try:
        talk = case.talk(probed.server)
        ask = next(talk)
        while True:
            for name in probed.refused:
                ask = without(ask, name)
            sent += 1
            asked = Batch(f"probe {len(probed.results)}.{sent}", (ask,), timeout_s=limits.request_s)
            [record] = loader.send(asked).records
            if limits.lenient and record.how == "timeout":
                skip(f"no complete answer within {limits.request_s:.0f} s: not judged")
            reply = replace(read_reply(record), left_out=tuple(probed.refused))
            fields = ask.body if ask.body and reply.status in (400, 422) else ()
            named = [one for one in OPTIONAL_FIELDS if one in fields and re.search(rf"\b{one}\b", reply.error)]
            if named:
                probed.refused.append(named[0])
            else:
                ask = talk.send(reply)
    except StopIteration:  # the case came to its end, so it passes
        pass
    except CaseOver as over:
        verdict = over.verdict
    except ClusterError:
        raise
    except Exception as error:  # a reply of a shape that nobody thought of is no reason to lose the others
        why = f"the answer could not be judged ({type(error).__name__}: {error})"
        verdict = Verdict("fail", why, reply.said() if reply else "")
    return CaseResult(case, verdict, time.monotonic() - started, sent), reply


# a request may take 280 tokens of a 31B on one Spark; the questions ask for a tenth of that
QUICK_LIMITS = Limits(request_s=40, begin_s=60, lenient=True)
END_S = 120.0  # of all of it, a client that hangs included


def probe_quickly(host: Host, container: str, spec: Mapping[str, Any], screen: Screen) -> dict[str, Any]:
    """Ask what runs in a container on this host, the head of a deployment, and say what it got wrong.

    `spec` is that of the deployment. A probe that could not be made is a warning. Raises InterruptedByUser only.
    """
    server = Server.of_spec(spec, HOME)
    try:
        with screen.waiting("a few questions to what is ready"), client_in(host, container, [server]) as loader:
            deadline = Timer(END_S, loader.close)
            deadline.daemon = True
            deadline.start()
            try:
                served = find_model(loader, server.model, server.url)
                probed = Probed(probed_server(served, spec["recipe"], spec["words"]))
                run_probe(loader, probed, QUICK, QUICK_LIMITS)
            finally:
                deadline.cancel()
    except (KeyboardInterrupt, InterruptedByUser):
        raise InterruptedByUser("interrupted at the last questions", rolled_back="nothing: it is ready") from None
    except ClusterError as error:
        screen.warn(f"not probed: {error.what}; cluster probe asks again")
        return {"error": error.what}
    asked = f"{len(probed.results)} short questions"
    if not probed.failed and not probed.gone:
        screen.line(f"asked {asked}: {probed.count('pass')} passed, {probed.count('not applicable')} not applicable")
        return probed.document()
    screen.warn(f"it serves, but of {asked} {len(probed.failed)} failed:")
    for line, _ in (row for result in probed.failed for row in result.lines()):
        screen.warn(line)
    more = "the server no longer answers; run cluster logs --explain" if probed.gone else "cluster probe asks more"
    screen.warn(f"  {more}")
    return probed.document()
