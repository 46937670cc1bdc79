"""`cluster status --watch` beside a real pair: silent while all is well, a wedge called within a minute and cured."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

from hosts_now import assert_serves
from own_lab import Lab
from person import MP, Person, Running, quick
from waiting import eventually

STEPS = 60
"""Enough for the proof of a start and for one completion, not for a second one of 64 tokens."""
WATCH = ("status", "--watch", "--interval", "2", "--json", "--on-wedge", "restart")


def events(watch: Running) -> list[str]:
    """What it has said so far."""
    return [json.loads(line)["event"] for line in watch.out.read_text().splitlines()]


def ask_and_leave(lab: Lab) -> None:
    """A request for 64 tokens that nobody waits for."""
    body = json.dumps({"model": "cluster-lab/tiny-gemma-4", "prompt": "Hello", "max_tokens": 64})
    curl = f"curl -s -m 300 http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' -d '{body}'"
    lab.tell("spark1", f"nohup {curl} >/dev/null 2>&1 </dev/null &")


def test_wedge(lab: Lab, person: Person, broken: Callable[[str, str], None]) -> None:
    person.must("up", *MP, "--no-probe", *quick(hang_after_steps=STEPS))  # whose questions are steps too
    watch = person.start(*WATCH)
    eventually(lambda: "watching" in events(watch), 20, "the first look")
    assert_serves(lab)
    time.sleep(8)
    assert events(watch) == ["watching"], "a healthy pair is no news"
    broken("spark1", "wedged")
    ask_and_leave(lab)
    took = eventually(lambda: "raised" in events(watch), 60, "the wedge is called")
    eventually(lambda: "restarted" in events(watch), 90, "all ranks are restarted")
    print(f"wedge called after {took:.0f} s: {watch.out.read_text()}")
    [raised] = [json.loads(line) for line in watch.out.read_text().splitlines() if '"raised"' in line]
    assert (raised["finding"]["level"], raised["finding"]["check"]) == ("fault", "wedge")
    assert "spark1 95 % busy at 20 W, 2405 MHz" in raised["finding"]["evidence"]
    assert_serves(lab)
    watch.send(signal.SIGTERM)
    assert watch.ended(20).code == 0
    assert person("status").code == 0
