"""Driving cases: what is sent, what is left out, what stops it; choosing cases; what a recipe promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from config_tools import refusal

from cluster.bench.endpoint import Served
from cluster.bench.loader import Ask, ClientLoad, Record, Round, RoundRecord
from cluster.errors import ConnectionLostError
from cluster.probe.ask import PASSED, Case, CaseResult, Subject, Talk, chat, failed, skipped, subject_of
from cluster.probe.cases import CASES, QUICK, Probed, choose, run_probe

SUBJECT = Subject("m", engine="vllm")


def reply(status: int, document: Any) -> bytes:
    body = orjson.dumps(document)
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


def said(text: str) -> bytes:
    return reply(200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})


@dataclass
class Server:
    """A load client and its server: `answer` gives the bytes of one, or None where there is no connection."""

    answer: Callable[[Ask], bytes | None] = lambda ask: said("hello")
    how: str = "done"
    rounds: list[Round] = field(default_factory=list)
    where: str = "here"

    def send(self, wanted: Round) -> RoundRecord:
        self.rounds.append(wanted)
        data = self.answer(wanted.asks[0])
        how, said = ("refused", "nobody listens") if data is None else (self.how, "")
        record = Record(0.0, 0.1, how, said, ((0.1, data),) if data else ())
        return RoundRecord(wanted.id, (record,), ClientLoad())


def case(name: str, talk: Callable[[Subject], Talk], **how: Any) -> Case:
    return Case(name, name, talk, "a test", "group", **how)


def greet(subject: Subject) -> Talk:
    answer = yield chat(subject, "hello", thinking=False)
    return failed("no", answer) if answer.error else PASSED


def give_up(subject: Subject) -> Talk:
    yield chat(subject, "hello")
    return skipped("it has none")


def outcomes(probed: Probed) -> list[str]:
    return [one.verdict.outcome for one in probed.results]


def test_cases_in_their_order() -> None:
    server, begun, told = Server(), [], []
    cases = [case("a", greet), case("b", give_up)]
    probed = run_probe(server, SUBJECT, cases, on_case=begun.append, on_result=told.append)
    assert begun == cases
    assert told == probed.results
    assert outcomes(probed) == ["pass", "not applicable"]
    assert [one.requests for one in told] == [1, 1]
    assert (probed.count("pass"), probed.failed, probed.left, probed.gone) == (1, [], (), "")
    assert len({one.id for one in server.rounds}) == 2


@pytest.mark.parametrize("status", [400, 422])
def test_refused_fields_are_left_out_from_then_on(status: int) -> None:
    def picky(ask: Ask) -> bytes:
        for name in ("seed", "chat_template_kwargs"):
            if name in ask.body:
                return reply(status, {"error": {"message": f"Unrecognized request argument supplied: {name}"}})
        return said("hello")

    server = Server(picky)
    probed = run_probe(server, SUBJECT, [case("a", greet), case("b", greet)])
    assert outcomes(probed) == ["pass", "pass"]
    assert probed.refused == ["seed", "chat_template_kwargs"]
    assert [one.requests for one in probed.results] == [3, 1]


@pytest.mark.parametrize(
    ("status", "words"),
    [(400, "messages are wrong"), (400, "the model exceeded its limit"), (500, "seed"), (400, "reseeded")],
)
def test_other_errors_are_the_cases(status: int, words: str) -> None:
    server = Server(lambda ask: reply(status, {"error": {"message": words}}))
    probed = run_probe(server, SUBJECT, [case("a", greet)])
    assert outcomes(probed) == ["fail"]
    assert words in probed.results[0].verdict.said
    assert len(server.rounds) == 1


def test_a_server_that_goes_away_ends_it() -> None:
    server = Server(lambda ask: said("hello") if len(server.rounds) < 2 else None)
    probed = run_probe(server, SUBJECT, [case(name, greet) for name in "abcd"])
    assert outcomes(probed) == ["pass", "fail"]
    assert "nobody listens" in probed.gone
    assert probed.left == ("c", "d")
    assert server.rounds[-1].asks[0].path == "/v1/models", "it was asked whether it is there"


def test_one_lost_request_does_not() -> None:
    server = Server(lambda ask: None if len(server.rounds) == 1 else said("hello"))
    assert outcomes(run_probe(server, SUBJECT, [case("a", greet), case("b", greet)])) == ["fail", "pass"]


def test_a_case_that_breaks_loses_no_other() -> None:
    def breaks(subject: Subject) -> Talk:
        answer = yield chat(subject, "hello")
        return failed(answer.document["nothing"])

    def forgets(subject: Subject) -> Talk:
        yield chat(subject, "hello")
        return None

    probed = run_probe(Server(), SUBJECT, [case("a", breaks), case("b", forgets), case("c", greet)])
    assert outcomes(probed) == ["fail", "fail", "pass"]
    assert [one.verdict.said for one in probed.results] == ["hello", "hello", ""]


def test_what_was_told_is_kept_when_the_client_ends() -> None:
    class Ends(Server):
        def send(self, wanted: Round) -> RoundRecord:
            if self.rounds:
                raise ConnectionLostError("the load client ended", code="load-client-lost")
            return super().send(wanted)

    kept = Probed(SUBJECT)
    with pytest.raises(ConnectionLostError):
        run_probe(Ends(), SUBJECT, [case("a", greet), case("b", greet)], into=kept)
    assert outcomes(kept) == ["pass"]


def test_random_weights_are_asked_what_needs_no_sense() -> None:
    server = Server()
    dummy = Subject("m", dummy=True)
    probed = run_probe(server, dummy, [case("a", greet), case("b", greet, judges_text=False)])
    assert outcomes(probed) == ["not applicable", "pass"]
    assert [one.requests for one in probed.results] == [0, 1]
    assert len(server.rounds) == 1


def test_a_budget() -> None:
    probed = run_probe(Server(), SUBJECT, [case("a", greet), case("b", greet)], budget_s=-1)
    assert (probed.results, probed.left) == ([], ("a", "b"))


def test_short_of_time_a_late_answer_is_not_judged() -> None:
    late = Server(lambda ask: b"", how="timeout")
    probed = run_probe(late, SUBJECT, [case("a", greet)], timeout_s=40, lenient=True)
    assert outcomes(probed) == ["not applicable"]
    assert late.rounds[0].timeout_s == 40
    patient = Server(lambda ask: b"" if ask.path != "/v1/models" else said(""), how="timeout")
    assert outcomes(run_probe(patient, SUBJECT, [case("a", greet)])) == ["fail"]


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.id for case in CASES]
    assert len(set(names)) == len(names)
    assert not set(names) & {case.group for case in CASES}
    assert all(case.title and case.source for case in CASES)
    assert not any(case.quick and case.long for case in CASES)


def test_the_page_lists_every_case() -> None:
    page = (Path(__file__).parents[2] / "docs" / "probing.md").read_text()
    assert [case.id for case in CASES if f"`{case.id}`" not in page] == []


def test_choose() -> None:
    assert choose([], full=True) == CASES
    assert choose([], quick=True) == QUICK
    assert 3 <= len(QUICK) <= 9, "a handful"
    plain = choose([])
    assert set(QUICK) <= set(plain)
    assert not [case for case in plain if case.long]
    assert [case.id for case in choose(["tools-html,tools-auto"])] == ["tools-auto", "tools-html"]
    assert {case.group for case in choose(["tools"])} == {"tools"}


def test_choose_a_name_that_is_none() -> None:
    nearest = refusal(choose, ["tools-hmtl"])
    assert (nearest.code, nearest.remedy) == ("case-not-found", "did you mean `tools-html`?")
    assert "groups: " in refusal(choose, ["xyzzy"]).remedy


# what a recipe promises

RECIPE = {
    "vllm": {"max-model-len": 65536, "enable-auto-tool-choice": True, "reasoning-parser": "gemma4"},
    "architecture": "Gemma4ForConditionalGeneration",
    "weights": "real",
}


def test_promises() -> None:
    served = Served("m", 32768, "vllm")
    assert subject_of(served, None) == Subject("m", 32768, engine="vllm")
    assert subject_of(served, RECIPE) == Subject("m", 32768, 65536, True, True, True, "vllm")
    bare = {"vllm": {}, "weights": "dummy"}
    assert subject_of(served, bare) == Subject("m", 32768, None, False, False, None, "vllm", dummy=True)
    assert subject_of(served, RECIPE | {"architecture": "ToyForCausalLM"}).vision is False
    assert subject_of(served, RECIPE | {"architecture": "NemotronForConditionalGeneration"}).vision is None


def test_words_behind_the_recipe_count() -> None:
    words = ["--no-enable-auto-tool-choice", "--max-model-len=1024", "--language-model-only", "--seed", "7"]
    subject = subject_of(Served("m", None), RECIPE, words)
    assert (subject.tools, subject.configured, subject.vision) == (False, 1024, False)
    assert subject_of(Served("m", None), RECIPE, ["--max_model_len", "auto"]).configured is None
    assert subject_of(Served("m", None), RECIPE, ["--max-model-len", "16K"]).configured == 16384
    assert subject_of(Served("m", None), RECIPE | {"vllm": {"max-model-len": -1}}).configured is None


def test_told_as_json() -> None:
    told = CaseResult(case("a", greet), failed("because", remedy="do this"), 1.23456, 2).document()
    assert told == dict.fromkeys(("id", "title"), "a") | dict.fromkeys(("said", "defect"), "") | {
        "group": "group",
        "outcome": "fail",
        "why": "because",
        "remedy": "do this",
        "seconds": 1.235,
        "requests": 2,
    }
