"""`cluster swap` and `cluster pull` as typed; what a user reads when they fail is in the transcripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from machine import DATA, HUB, IMAGE, MODEL, Desk, Killed
from typed import RECIPE, UP, Typed


@pytest.fixture(autouse=True)
def other(cluster: Typed) -> None:
    """A second recipe."""
    Path(cluster.place, "recipes", "other.yaml").write_text(RECIPE.replace("4096", "2048"))


def test_one_model_goes_and_another_comes(cluster: Typed, desk: Desk, running: str) -> None:
    got = json.loads(cluster.must("swap", "other", "--json").out)
    assert (got["changed"], got["hosts"], got["tp"]) == (True, ["spark1", "spark2"], 2)
    assert {"stop the old", "memory back", "apply"} <= set(got["stages_s"])
    assert got["memory_bytes"]["idle"]["spark2"]["gpu"] == 0, "taken when the old one was gone"
    [(name, hosts)] = desk.serving().items()
    assert name.startswith("other-")
    assert hosts == ["spark1", "spark2"]
    assert [len(machine.docker.containers) for machine in desk] == [1, 1]


def test_an_old_one_of_another_version_is_not_said_to_be_down(cluster: Typed, desk: Desk, running: str) -> None:
    """Its recipe has a key that this version does not know."""
    for one in desk.containers:
        labels = one.options["--label"]
        labels[:] = [word.replace('"recipe":{', '"recipe":{"later":1,') for word in labels]
    desk.bad_flag = "--max-num-seqs"
    ran = cluster("swap", "other", "--", "--max-num-seqs", "8")
    assert "recipe.later" in ran.out
    assert "was started again, but was not proven: " in ran.err


def test_its_hosts_are_those_of_what_runs(cluster: Typed, desk: Desk) -> None:
    cluster.must("up", "toy", "--solo", "-n", "spark2")
    cluster.must("swap", "other")
    [(_, hosts)] = desk.serving().items()
    assert hosts == ["spark2"]
    cluster.must("swap", "toy", "-n", "spark1,spark2")
    [(_, hosts)] = desk.serving().items()
    assert hosts == ["spark1", "spark2"]


def test_what_is_missing_is_fetched_while_the_old_one_serves(cluster: Typed, desk: Desk) -> None:
    """And what cannot be fetched leaves it alone."""
    Path("recipes", "other.yaml").write_text(RECIPE.replace("example/toy", "example/second"))
    cluster.must(*UP)
    before = desk.state()
    cluster.ends(4, "swap", "other", "--yes")
    assert desk.state() == before
    desk.hub |= {"example/second"}
    cluster.must("swap", "other", "--yes")
    [(name, _)] = desk.serving().items()
    assert name.startswith("other-")


def test_pull_needs_no_gpu_and_disturbs_nothing(cluster: Typed, desk: Desk) -> None:
    for machine in desk:
        machine.docker.registry = dict(machine.docker.images)
    desk["spark2"].docker.images.clear()
    desk["spark2"].models.clear()
    desk["spark1"].smi = (9, "no devices were found")
    got = json.loads(cluster.must("pull", "toy", "--yes", "--json").out)
    assert got["complete"]
    assert got["hosts"]["spark2"][MODEL]["files"] == 5
    assert got["hosts"]["spark2"][IMAGE]["content"] == got["hosts"]["spark1"][IMAGE]["content"]
    assert not any(machine.docker.containers for machine in desk)
    [download] = [one.argv for one in desk.hosts["spark2"].asked if "download" in one.argv]
    assert {f"type=bind,source={HUB},target=/hf", "1000:1000"} <= set(download), "the files are the user's"
    before = desk.state()
    cluster.must("pull", "toy")
    assert desk.state() == before


def test_a_pull_that_was_killed_is_taken_up_again(cluster: Typed, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its download goes on in its container, and its token lies on the host; what a deployment keeps there stays."""
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    desk["spark1"].make_folder(f"{DATA}/deployments/toy-1")
    desk["spark2"].models.clear()
    desk.hosts["spark2"].killed_at = 3
    with pytest.raises(Killed):
        cluster("pull", "toy", "--yes")
    desk.recover()
    words = "run --detach --name cluster-download --label cluster.try=1 --entrypoint sleep"
    desk["spark2"].docker.answer((*words.split(), IMAGE, "9"))
    assert any("token" in name for name in desk["spark2"].files)
    later = cluster.copy()
    cluster.must("pull", "toy", "--yes")
    later.desk["spark2"].models = {MODEL: desk["spark2"].models[MODEL]}  # the download ended by itself
    later.must("pull", "toy", "--yes")
    for one in (desk, later.desk):
        assert one["spark2"].files == {}
        assert one["spark2"].docker.containers == {}
        assert one["spark1"].kept() == ["toy-1"]
