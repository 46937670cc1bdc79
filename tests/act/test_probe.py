"""`cluster probe` as typed, and the few questions at the end of `cluster up`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from fake_host import FakeProcess
from fake_load import AUTO, FakeLoad
from machine import Desk
from transcript import compare, written
from typed import RECIPE, Ran, Typed, write_files

from cluster.argv.far import source
from cluster.errors import ConnectionLostError
from cluster.probe import quick

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


def test_all_is_well(tools: Typed) -> None:
    started(tools)
    ran = story("well", tools, "probe", "--quick", code=0)
    assert "7 passed, 0 failed, 0 not applicable" in ran.out


def test_a_known_defect(tools: Typed, desk: Desk) -> None:
    started(tools)
    desk.arguments = BROKEN
    ran = story("known_defect", tools, "probe", "--only", "tools-single-streamed", "text-fact", code=4)
    assert "vLLM issue 38946" in ran.out


def test_a_recipe_without_tools(cluster: Typed) -> None:
    started(cluster)
    ran = story("no_tools", cluster, "probe", "--only", "tools-auto,tools-single", code=0)
    assert "--set vllm.enable-auto-tool-choice=true" in ran.out


def test_nothing_runs(cluster: Typed) -> None:
    story("nothing_runs", cluster, "probe", code=4)


def test_no_such_case(cluster: Typed, desk: Desk) -> None:
    story("no_such_case", cluster, "probe", "--only", "tool-html", code=2)
    assert not desk.hosts[HEAD].asked, "no host is asked"


def test_no_server_at_the_address(cluster: Typed) -> None:
    story("no_server", cluster, "probe", "--base-url", "http://127.0.0.1:9", code=1)


def test_the_server_dies_meanwhile(tools: Typed, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    started(tools)
    dies_after(desk, monkeypatch, 4)
    ran = story("dies", tools, "probe", "--quick", code=4)
    assert "the server no longer answers" in ran.err
    assert "not asked: " in ran.err


def test_the_engine_is_gone_before_it_begins(tools: Typed, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    started(tools)
    dies_after(desk, monkeypatch, 0)
    assert tools("probe").code == 1


def test_it_is_gone_after_its_name(tools: Typed, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    started(tools)
    dies_after(desk, monkeypatch, 1)
    assert tools("probe").code == 1, "it served nothing"


def dies_after(desk: Desk, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Answer so many requests, and no more."""
    sent = []
    answered = FakeLoad.reply

    def reply(self: FakeLoad, path: str, body: dict | None) -> bytes:
        sent.append(path)
        return answered(self, path, body) if len(sent) <= count else b""

    monkeypatch.setattr(FakeLoad, "reply", reply)


def test_interrupted(tools: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    started(tools)
    interrupts_at(monkeypatch, 3)
    ran = story("interrupted", tools, "probe", "--quick", code=130)
    assert "1 passed, 0 failed" in ran.out


def test_interrupted_as_json(tools: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    started(tools)
    interrupts_at(monkeypatch, 3)
    assert json.loads(tools("probe", "--quick", "--json").out)["passed"] == 1


def interrupts_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Ctrl-C at the n-th request."""
    sent = []
    answered = FakeLoad.reply

    def reply(self: FakeLoad, path: str, body: dict | None) -> bytes:
        sent.append(path)
        if len(sent) == count:
            raise KeyboardInterrupt
        return answered(self, path, body)

    monkeypatch.setattr(FakeLoad, "reply", reply)


# what it is asked with


def test_another_recipe_says_what_is_promised(cluster: Typed) -> None:
    """What runs has no tools; by the recipe of -r it should."""
    started(cluster)
    promises = RECIPE.replace("max-model-len", WITH_TOOLS)
    (cluster.place / "recipes" / "promises.yaml").write_text(promises)
    assert cluster("probe", "--only", "tools-auto").code == 0
    ran = cluster("probe", "--only", "tools-auto", "-r", "promises")
    assert ran.code == 4
    assert "is refused with HTTP 400" in ran.out


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
    assert "✗ text-fact" in ran.err, "progress is told meanwhile"


# the end of `up`


def test_up_asks_what_it_started(tools: Typed, desk: Desk) -> None:
    ran = started(tools)
    assert "asked 7 short questions: 7 passed, 0 not applicable" in ran.out
    assert clients(desk) == 1
    assert all(one.ended for one in desk.hosts[HEAD].processes)


def test_up_asks_nothing_where_it_changed_nothing(tools: Typed, desk: Desk) -> None:
    started(tools)
    ran = started(tools)
    assert "nothing is changed" in ran.out
    assert "short questions" not in ran.all
    assert clients(desk) == 1


def test_up_without_questions(tools: Typed, desk: Desk) -> None:
    ran = tools("up", "toy", "--no-probe")
    assert ran.code == 0
    assert "short questions" not in ran.all
    assert clients(desk) == 0


def test_up_says_what_failed_and_stays_ready(tools: Typed, desk: Desk) -> None:
    desk.arguments = BROKEN
    ran = story("up", tools, "up", "toy", code=0)
    assert "it serves, but of 7 short questions 2 failed" in ran.err
    assert len(desk.serving()) == 1


def test_up_as_json(tools: Typed, desk: Desk) -> None:
    told = json.loads(tools("up", "toy", "--json").out)
    assert told["changed"]
    assert (told["probe"]["passed"], told["probe"]["failed"]) == (7, 0)
    assert "probe" not in json.loads(tools("up", "toy", "--json").out)


def clients_that(desk: Desk, process: FakeProcess) -> None:
    desk.hosts[HEAD].starter = lambda argv, stdin: (
        process if source("load") in stdin else desk[HEAD].started(argv, stdin)
    )


@pytest.mark.parametrize(
    "lines",
    [['{"error": "no module asyncio"}'], ["OCI runtime exec failed"], []],
    ids=["error", "no container", "silent"],
)
def test_a_client_that_does_not_start_is_a_warning(tools: Typed, desk: Desk, lines: Sequence[str]) -> None:
    clients_that(desk, FakeProcess(lines, 1))
    ran = tools("up", "toy")
    assert ran.code == 0
    assert "not probed: " in ran.err
    assert len(desk.serving()) == 1


def test_a_client_that_hangs_is_ended(tools: Typed, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "END_S", 0.3)
    clients_that(desk, FakeProcess(['{"ready": true, "python": "3", "hostname": "h"}']))
    ran = tools("up", "toy")
    assert ran.code == 0
    assert "not probed: " in ran.err


def test_a_host_that_is_lost_then_is_a_warning(tools: Typed, desk: Desk) -> None:
    def lost(argv: tuple[str, ...], stdin: bytes) -> FakeProcess:
        if source("load") in stdin:
            raise ConnectionLostError("the connection to spark1 was lost")
        return desk[HEAD].started(argv, stdin)

    desk.hosts[HEAD].starter = lost
    ran = tools("up", "toy")
    assert (ran.code, "not probed: the connection to spark1 was lost" in ran.err) == (0, True)


def test_ctrl_c_at_the_questions_leaves_it_ready(tools: Typed, desk: Desk) -> None:
    def interrupted(argv: tuple[str, ...], stdin: bytes) -> FakeProcess:
        if source("load") in stdin:
            raise KeyboardInterrupt
        return desk[HEAD].started(argv, stdin)

    desk.hosts[HEAD].starter = interrupted
    ran = story("up_interrupted", tools, "up", "toy", code=130)
    assert len(desk.serving()) == 1
    assert "ready: " in ran.out


def test_a_recipe_without_tools_is_not_told_off(cluster: Typed) -> None:
    ran = started(cluster)
    assert AUTO not in ran.all
    assert "asked 7 short questions: 4 passed, 3 not applicable" in ran.out


def test_random_weights(cluster: Typed) -> None:
    write_files(cluster.place, RECIPE + "weights: dummy\n")
    assert "asked 7 short questions: 3 passed, 4 not applicable" in started(cluster).out
    story("random_weights", cluster, "probe", "--quick", code=0)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://spark1", "http://", "http://spark1:eight", "http://[::1"])
@pytest.mark.parametrize("command", ["probe", "bench"])
def test_what_is_no_address_is_refused(command: str, url: str, cluster: Typed) -> None:
    ran = cluster(command, "--base-url", url)
    assert ran.code == 2
    assert "[url-invalid]" in ran.err


def test_a_password_in_an_address_is_refused_and_not_shown(cluster: Typed) -> None:
    ran = cluster("probe", "--base-url", "http://ada:hunter2@spark1:8000")
    assert ran.code == 2
    assert "[url-invalid]" in ran.err
    assert "hunter2" not in ran.all
