"""`cluster probe` as typed, what a user sees of servers that misbehave, and the few questions at the end of `up`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from fake_host import FakeProcess
from fake_load import AUTO, FakeLoad, in_one_piece, streamed, whole
from machine import Desk
from transcript import compare, written
from typed import RECIPE, Ran, Typed, write_files

from cluster.argv.far import source
from cluster.errors import ConnectionLostError
from cluster.probe import cases
from cluster.probe.problems import PROBLEMS

WITH_TOOLS = "enable-auto-tool-choice: true, tool-call-parser: hermes, max-model-len"
BROKEN = '{"city": "<|\\Paris<|\\"|"}'
HEAD = "spark1"


@pytest.fixture
def tools(cluster: Typed) -> Typed:
    """The toy with tools."""
    write_files(cluster.place, RECIPE.replace("max-model-len", WITH_TOOLS))
    return cluster


def started(cluster: Typed) -> Ran:
    ran = cluster("up", "toy", "--tp", "2")
    assert ran.code == 0, ran.all
    return ran


def clients(desk: Desk) -> int:
    """How many load clients were started on the head."""
    return sum(isinstance(one, FakeLoad) for one in desk.hosts[HEAD].processes)


def story(name: str, cluster: Typed, *words: str, code: int) -> Ran:
    ran = cluster(*words)
    compare(f"probe/{name}", written(words, ran, cluster.place))
    assert ran.code == code
    return ran


# stories a user can meet


def test_all_is_well_and_a_known_defect(tools: Typed, desk: Desk) -> None:
    started(tools)
    story("well", tools, "probe", "--quick", code=0)
    desk.arguments = BROKEN
    story("known_defect", tools, "probe", "--only", "tools-single-streamed", "text-fact", code=4)


def test_a_recipe_without_tools(cluster: Typed) -> None:
    ran = started(cluster)
    assert AUTO not in ran.all
    assert "asked 7 short questions: 4 passed, 3 not applicable" in ran.out
    story("no_tools", cluster, "probe", "--only", "tools-auto,tools-single", code=0)


def test_nothing_to_ask(cluster: Typed, desk: Desk) -> None:
    story("no_such_case", cluster, "probe", "--only", "tool-html", code=2)
    assert not desk.hosts[HEAD].asked, "no host is asked"
    story("nothing_runs", cluster, "probe", code=4)
    story("no_server", cluster, "probe", "--base-url", "http://127.0.0.1:9", code=1)


def at_request(monkeypatch: pytest.MonkeyPatch, number: int, happens: Callable[[], bytes]) -> None:
    """From the n-th request on this happens instead of an answer."""
    sent = []
    answered = FakeLoad.reply

    def reply(self: FakeLoad, path: str, body: dict[str, Any] | None) -> bytes:
        sent.append(path)
        return answered(self, path, body) if len(sent) < number else happens()

    monkeypatch.setattr(FakeLoad, "reply", reply)


def test_the_server_dies_meanwhile(tools: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    started(tools)
    at_request(monkeypatch, 5, bytes)
    story("dies", tools, "probe", "--quick", code=4)


@pytest.mark.parametrize("answers", [0, 1])
def test_a_server_that_served_nothing_before_it_was_gone(
    answers: int, tools: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(tools)
    at_request(monkeypatch, answers + 1, bytes)
    assert tools("probe").code == 1


def test_interrupted(tools: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> bytes:
        raise KeyboardInterrupt

    started(tools)
    with monkeypatch.context() as patched:
        at_request(patched, 3, interrupt)
        story("interrupted", tools, "probe", "--quick", code=130)
    at_request(monkeypatch, 3, interrupt)
    assert json.loads(tools("probe", "--quick", "--json").out)["passed"] == 1


# what it is asked with


def test_another_recipe_says_what_is_promised(cluster: Typed) -> None:
    """What runs has no tools; by the recipe of -r it should."""
    started(cluster)
    promises = RECIPE.replace("max-model-len", WITH_TOOLS)
    (cluster.place / "recipes" / "promises.yaml").write_text(promises)
    assert cluster("probe", "--only", "tools-auto").code == 0
    assert cluster("probe", "--only", "tools-auto", "-r", "promises").code == 4


def test_it_asks_in_the_heads_container_under_the_lock(tools: Typed, desk: Desk) -> None:
    started(tools)
    held = []
    desk.hosts[HEAD].starter = lambda argv, stdin: (
        held.append(desk.hosts["spark2"].lock_holder) or FakeLoad(desk[HEAD], argv, stdin)
    )
    assert tools("probe", "--only", "text-fact").code == 0
    assert "probe toy-" in held[0]["why"]
    assert desk.hosts["spark2"].lock_holder is None
    words = desk.hosts[HEAD].started[-1]
    assert re.match(r"docker exec --interactive cluster-toy-\w+-r0 ", " ".join(words))


def test_the_key_is_used_and_not_shown(tools: Typed, desk: Desk) -> None:
    (tools.place / "key").write_text("sk-abc\n")
    ran = tools("up", "toy", "--api-key-file", "key")
    assert ran.code == 0
    assert "questions: 7 passed" in ran.out
    ran = tools("probe", "--only", "text-fact")
    assert ran.code == 0
    assert "sk-abc" not in ran.all
    assert not any(b"sk-abc" in bytes(one.written) for one in desk.hosts[HEAD].processes)


def test_json(tools: Typed, desk: Desk) -> None:
    started(tools)
    desk.says = "Berlin."
    ran = tools("probe", "--quick", "--json")
    assert ran.code == 4
    told = json.loads(ran.out)
    assert told["subject"] | {"limit": 4096, "configured": 4096, "tools": True, "engine": "vllm"} == told["subject"]
    assert (told["passed"], told["failed"]) == (6, 1)
    [wrong] = [one for one in told["cases"] if one["outcome"] == "fail"]
    assert (wrong["id"], wrong["said"]) == ("text-fact", "Berlin.")


# the end of `up`


def test_up_asks_only_what_it_started(tools: Typed, desk: Desk) -> None:
    document = json.loads(tools("up", "toy", "--json").out)
    assert document["changed"]
    assert (document["probe"]["passed"], document["probe"]["failed"]) == (7, 0)
    assert all(one.ended for one in desk.hosts[HEAD].processes)
    assert "probe" not in json.loads(tools("up", "toy", "--json").out)
    assert clients(desk) == 1


def test_up_asks_nothing_when_not_wanted(tools: Typed, desk: Desk) -> None:
    ran = tools("up", "toy", "--no-probe")
    assert (ran.code, "short questions" in ran.all, clients(desk)) == (0, False, 0)


def test_up_says_what_failed_and_stays_ready(tools: Typed, desk: Desk) -> None:
    desk.arguments = BROKEN
    story("up", tools, "up", "toy", code=0)
    assert len(desk.serving()) == 1


def client_that(desk: Desk, does: Callable[[], FakeProcess]) -> None:
    """What happens where the load client is started on the head."""
    desk.hosts[HEAD].starter = lambda argv, stdin: (
        does() if source("load") in stdin else desk[HEAD].started(argv, stdin)
    )


def raises(error: BaseException) -> FakeProcess:
    raise error


@pytest.mark.parametrize(
    "does",
    [
        lambda: FakeProcess(['{"error": "no module asyncio"}'], 1),
        lambda: FakeProcess(["OCI runtime exec failed"], 1),
        lambda: FakeProcess([], 1),
        lambda: FakeProcess(['{"ready": true, "python": "3", "hostname": "h"}']),
        lambda: raises(ConnectionLostError("the connection to spark1 was lost", code="connection-lost")),
    ],
    ids=["error", "no container", "silent", "hangs", "lost"],
)
def test_questions_that_cannot_be_asked_are_a_warning(
    does: Callable[[], FakeProcess], tools: Typed, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "END_S", 0.3)
    client_that(desk, does)
    ran = tools("up", "toy")
    assert (ran.code, "not probed: " in ran.err, len(desk.serving())) == (0, True, 1)


def test_ctrl_c_at_the_questions_leaves_it_ready(tools: Typed, desk: Desk) -> None:
    client_that(desk, lambda: raises(KeyboardInterrupt()))
    story("up_interrupted", tools, "up", "toy", code=130)
    assert len(desk.serving()) == 1


def test_random_weights(cluster: Typed) -> None:
    write_files(cluster.place, RECIPE + "weights: dummy\n")
    assert "asked 7 short questions: 3 passed, 4 not applicable" in started(cluster).out
    story("random_weights", cluster, "probe", "--quick", code=0)


@pytest.mark.parametrize("command", ["probe", "bench"])
def test_what_is_no_address_is_refused(command: str, cluster: Typed) -> None:
    secrets = [f"http://ada:hunter2@{place}" for place in ("spark1:8000", "spark1:eight", "[::1")]
    for url in (*secrets, "localhost:8000", "ftp://spark1", "http://", "http://spark1:eight", "http://[::1"):
        ran = cluster(command, "--base-url", url)
        assert (ran.code, "[url-invalid]" in ran.err, "hunter2" in ran.all) == (2, True, False), url


# servers that misbehave

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
    return lambda body: (streamed if body["stream"] else in_one_piece)(model or body["model"], message, finish)


THOUGHTS = "Let p be the price of a pen, so 2p + 3(p + 7) = 41."
NULL = says(f"thought\n{THOUGHTS}\nA pen costs 4 euros.")
WELL = says("A pen costs 4 euros.", reasoning=THOUGHTS)
LOOP = says("The sky is blue because the sky is blue. " * 40, finish="length")
MARK = says("Paris.<turn|>")
STORIES: dict[str, tuple[Speak, str]] = {
    "rubbish": (says("!" * 400, finish="length"), "--only text"),
    "loop": (lambda body: (LOOP if "sky" in str(body["messages"]) else MARK)(body), "--only text-fact text-essay"),
    "failover": (says("Hello!", model="Qwen/Qwen3.6-35B-A3B"), "--only served-name served-unknown"),
    "blind": (says("A red square and a green circle."), "-r promises --only vision"),
    "no_reasoning": (lambda body: (WELL if body["stream"] else NULL)(body), "-r promises --only reasoning"),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_server_that_misbehaves(name: str, serving: Typed, speaks: Callable[[Speak], None]) -> None:
    speak, words = STORIES[name]
    speaks(speak)
    story(name, serving, "probe", *words.split(), code=4)


def test_a_limit_that_cuts_in_silence(
    serving: Typed, speaks: Callable[[Speak], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(self: FakeLoad, path: str, body: dict[str, Any] | None) -> bytes:
        listed = {"data": [{"id": "example/toy", "owned_by": "vllm", "max_model_len": 4096}]}
        return says("Hi")(body) if body else whole(200, listed)

    monkeypatch.setattr(FakeLoad, "reply", reply)
    story("limit", serving, "probe", "--only", "context-limit", code=4)


def test_no_pictures(serving: Typed, speaks: Callable[[Speak], None]) -> None:
    words = "At most 0 image(s) may be provided in one prompt."
    speaks(lambda body: whole(400, {"error": {"message": words}}))
    story("no_pictures", serving, "probe", "--only", "vision", code=0)
    assert serving("probe", "-r", "promises", "--only", "vision").code == 4, "the recipe promises them"


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
