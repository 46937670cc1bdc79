"""What a user sees of servers that misbehave: rubbish, another model, blind, no reasoning, cuts; and the score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_load import FakeLoad, said, streamed, whole
from transcript import compare, written
from typed import RECIPE, Ran, Typed

from cluster.probe.problems import PROBLEMS

Speak = Callable[[dict[str, Any]], bytes]
PROMISES = RECIPE.replace("ToyForCausalLM", "Gemma4ForConditionalGeneration").replace(
    "max-model-len", "reasoning-parser: gemma4, max-model-len"
)
"""As the toy, of a model that sees and thinks."""


@pytest.fixture
def serving(cluster: Typed) -> Typed:
    """The toy runs, and a recipe lies there that promises more."""
    (cluster.place / "recipes" / "promises.yaml").write_text(PROMISES)
    ran = cluster("up", "toy", "--tp", "2", "--no-probe")
    assert ran.code == 0, ran.all
    return cluster


@pytest.fixture
def speaks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Speak], None]:
    """Have the server answer chats in this way."""
    return lambda speak: monkeypatch.setattr(FakeLoad, "speak", lambda self, body: speak(body))


def says(content: str, *, reasoning: str = "", finish: str = "stop", model: str = "") -> Speak:
    """The same answer to everything, streamed or not."""
    message = {"role": "assistant", "content": content, "reasoning": reasoning or None}
    return lambda body: (streamed if body["stream"] else said)(model or body["model"], message, finish)


def story(name: str, cluster: Typed, *words: str, code: int) -> Ran:
    ran = cluster(*words)
    compare(f"probe/{name}", written(words, ran, cluster.place))
    assert ran.code == code
    return ran


def test_rubbish(serving: Typed, speaks: Callable[[Speak], None]) -> None:
    speaks(says("!" * 400, finish="length"))
    story("rubbish", serving, "probe", "--only", "text", code=4)


def test_a_loop_and_a_mark(serving: Typed, speaks: Callable[[Speak], None]) -> None:
    loop, mark = says("The sky is blue because the sky is blue. " * 40, finish="length"), says("Paris.<turn|>")
    speaks(lambda body: (loop if "sky" in str(body["messages"]) else mark)(body))
    story("loop", serving, "probe", "--only", "text-fact", "text-essay", code=4)


def test_another_model_answers(serving: Typed, speaks: Callable[[Speak], None]) -> None:
    speaks(says("Hello!", model="Qwen/Qwen3.6-35B-A3B"))
    story("failover", serving, "probe", "--only", "served-name", "served-unknown", code=4)


def test_a_limit_that_cuts_in_silence(
    serving: Typed, speaks: Callable[[Speak], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(self: FakeLoad, path: str, body: dict[str, Any] | None) -> bytes:
        listed = {"data": [{"id": "example/toy", "owned_by": "vllm", "max_model_len": 4096}]}
        return says("Hi")(body) if body else whole(200, listed)

    monkeypatch.setattr(FakeLoad, "reply", reply)
    story("limit", serving, "probe", "--only", "context-limit", code=4)


def test_blind(serving: Typed, speaks: Callable[[Speak], None]) -> None:
    speaks(says("A red square and a green circle."))
    story("blind", serving, "probe", "-r", "promises", "--only", "vision", code=4)


def test_no_pictures(serving: Typed, speaks: Callable[[Speak], None]) -> None:
    words = "At most 0 image(s) may be provided in one prompt."
    speaks(lambda body: whole(400, {"error": {"message": words}}))
    story("no_pictures", serving, "probe", "--only", "vision", code=0)
    assert serving("probe", "-r", "promises", "--only", "vision").code == 4, "the recipe promises them"


def test_no_reasoning(serving: Typed, speaks: Callable[[Speak], None]) -> None:
    thoughts = "Let p be the price of a pen, so 2p + 3(p + 7) = 41."
    null, well = says(f"thought\n{thoughts}\nA pen costs 4 euros."), says("A pen costs 4 euros.", reasoning=thoughts)
    speaks(lambda body: (well if body["stream"] else null)(body))
    ran = story("no_reasoning", serving, "probe", "-r", "promises", "--only", "reasoning", code=4)
    assert "vLLM issue 38855" in ran.out


def test_the_score(serving: Typed, speaks: Callable[[Speak], None]) -> None:
    right = {one.text: says(f"So it is.\n\n**Answer:** {one.answer}") for one in PROBLEMS}
    right[PROBLEMS[2].text] = says("Answer: 80")
    right[PROBLEMS[5].text] = says("", reasoning="t, h, u, n", finish="length")
    speaks(lambda body: next(say(body) for text, say in right.items() if text in str(body["messages"][0]["content"])))
    story("score", serving, "probe", "--only", "reasoning-check", code=0)


def test_problems_that_nobody_answers(serving: Typed, speaks: Callable[[Speak], None]) -> None:
    speaks(lambda body: whole(500, {"error": {"message": "EngineCore died"}}))
    ran = serving("probe", "--only", "problem-price", "problem-ticket")
    assert (ran.code, "0 passed, 2 failed" in ran.out, "solved" in ran.out) == (4, True, False)
