"""Two servers beside one pair: a deployment on each host, measured together; which use of two hosts is better."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hosts_now import HOSTS, assert_nothing_of_ours, rank_of
from own_lab import Lab
from person import MP, QUICK, Person, Ran

SHORT = ("--pp", "64", "--tg", "32", "--depth", "0", "--results", "results")


def stored(person: Person, ran: Ran) -> dict[str, Any]:
    """The result that a bench has kept."""
    [path] = [line.split()[1] for line in ran.out.splitlines() if line.startswith("result: ")]
    found: dict[str, Any] = json.loads((person.place / path).read_text())
    return found


def test_two_solo_deployments_are_measured_together(lab: Lab, person: Person) -> None:
    """Both serve; a command that could mean either is refused; one is killed under load; both are taken down."""
    for host in HOSTS:
        person.must("up", "--solo", "-n", host, *QUICK, "--no-probe")
    shown = person.must("status", "--json").document["deployments"]
    assert [(one["state"], one["hosts"]) for one in shown] == [("ready", ["spark1"]), ("ready", ["spark2"])]
    for words in (("bench",), ("down",), ("logs",)):
        refused = person(*words)
        assert refused.code == 2, refused
        assert all(f"{one['id']} on {one['hosts'][0]}" in refused.errors[0]["error"] for one in shown)

    measured = stored(person, person.must("bench", "--replicas", *SHORT, "--concurrency", "1", "2", "--runs", "2"))
    names = [f"{one['id']} on {one['hosts'][0]}" for one in shown]
    assert measured["manifest"]["replicas"] == names
    single, double = measured["benchmarks"]
    assert [one["requests"] for one in single["replicas"].values()] == [1, 1]
    assert [one["requests"] for one in double["replicas"].values()] == [2, 2]
    assert (single["failed"], double["failed"]) == (0, 0)
    assert set(double["machine"][0]["after"]) == set(HOSTS)

    bench = person.start("bench", "-n", "spark1,spark2", *SHORT, "--concurrency", "2", "--runs", "8")
    bench.await_said("(runs: 2)")
    lab.tell("spark1", f"docker kill {rank_of(lab, 'spark1')}")  # with the load client in it
    ended = bench.ended()
    assert ended.code == 6, ended
    assert f"REPLICA LOST: {names[0]} answered no request in" in ended.err
    [row] = stored(person, ended)["benchmarks"]
    assert row["runs"] == 8
    assert row["failed"] in (5, 6), "the run of the kill, where it was not measured yet, and all later ones"
    refused = person("bench", "--replicas", *SHORT)
    assert (refused.code, refused.errors[0]["code"]) == (4, "replicas-missing")
    person.must("down", "-n", "spark1,spark2")
    assert_nothing_of_ours(lab)


def test_replicas_beside_the_pair(lab: Lab, person: Person) -> None:
    """On the quick image, whose rate does not depend on its clients: one client is served faster by the pair."""
    short = ("--pp", "64", "--tg", "128", "--depth", "0", "--runs", "2", "--results", "results")
    words = [word for word in MP if word not in ("--no-probe", "1")]
    ran = person.must("scaling", *words, "--replicas", *short, "--json")
    tables = {table["title"]: table for table in ran.document["tables"]}
    assert [row["step"] for row in tables["steps"]["rows"]] == ["TP=2", "2 × TP=1"]
    [row, *_] = tables["2 × TP=1 or TP=2: the same hosts"]["rows"]
    assert (row["test"], row["clients"]) == ("tg128", "1")
    assert float(row["2 × TP=1 ÷ TP=2"][:-1]) < 0.9
    assert_nothing_of_ours(lab)


@pytest.mark.campaign
def test_replicas_beside_tp_2_on_the_real_engine(lab: Lab, person: Person) -> None:
    words = ("-n", "spark1,spark2", "--tp", "1", "2", "--replicas", "--backend", "mp")
    short = ("--pp", "64", "--tg", "64", "--depth", "0", "--concurrency", "1", "4", "--runs", "2")
    ran = person.must("scaling", *words, *short, "--results", "results", "--json")
    print(ran.err)
    document = ran.document
    tables = {table["title"]: table for table in document["tables"]}
    assert [row["step"] for row in tables["steps"]["rows"]] == ["TP=1", "TP=2", "2 × TP=1"]
    both = tables["2 × TP=1 or TP=2: the same hosts"]
    rows = [row for row in both["rows"] if row["what"] == "token generation"]
    assert [row["clients"] for row in rows] == ["1", "4"]
    assert all(row["better"] for row in rows)
    print(json.dumps(both, indent=1))
    counted = document["results"][-1]["benchmarks"][-1]["replicas"]
    assert [one["requests"] for one in counted.values()] == [4, 4]
    assert_nothing_of_ours(lab)
