"""Golden words: a whole plan for two hosts, for Ray, mp and one rank, as `--dry-run` prints it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from golden_plans import compare, plan
from plan_tools import DATA, GIB, one_cable, recipe, running, seen, wanted

from cluster.argv.far import source
from cluster.argv.question import Question
from cluster.deploy.plan import Plan, forget, plan_down
from cluster.deploy.rank import Put
from cluster.spark.deployments import deployments
from cluster.spark.look import Seen
from cluster.spark.memory import Memory
from cluster.spark.request import Backend, Wanted

SECRETS = {"HF_TOKEN": "hf_planted", "VLLM_API_KEY": "sk_planted"}
RECIPE = recipe(
    before_serve=[["python3", "-c", "print('ready')"]],
    mounts=[{"source": "/here/patch.py", "target": "/opt/vllm/patch.py"}],
    vllm={"max-model-len": 4096, "quantization": "fp8", "hf-overrides": {"a": "it's"}},
)


def ask(size: int, backend: Backend) -> Wanted:
    mounted = {"/opt/vllm/patch.py": b"print(1)\n"}
    given: dict[str, Any] = {"env": {"SEED": "two words"}, "secrets": SECRETS, "words": ("--seed", "1")}
    return wanted(size, backend, RECIPE, mounted=mounted, **given)


def crossed() -> tuple[Seen, ...]:
    """Two Sparks, cabled from port 0 to port 1; page cache stands in the way on the worker."""
    full = Memory(total=120 * GIB, available=110 * GIB, free=5 * GIB)
    return seen(1), seen(2, links=one_cable(2, connector=1), memory=full)


@pytest.mark.parametrize(("name", "size", "backend"), [("ray", 2, "ray"), ("mp", 2, "mp"), ("solo", 1, "none")])
def test_up(name: str, size: int, backend: Backend) -> None:
    compare(name, list(plan(ask(size, backend), crossed()[:size]).lines()))


def test_built() -> None:
    """A recipe with everything that changes an image: files of ours and of the model, and a Dockerfile."""
    target = "site-packages/vllm/model_executor/models/toy.py"
    mounts = [
        {"source": "/here/new.py", "target": "site-packages/new.py"},
        {"model_file": "fix/toy.py", "target": target},
    ]
    of = wanted(1, "none", recipe(mounts=mounts, dockerfile="/here/Dockerfile"))
    of = replace(of, mounted={"site-packages/new.py": b"print(1)\n"}, dockerfile=b"ARG IMAGE\nFROM $IMAGE\nRUN true\n")
    compare("built", plan(of, (seen(1),)).lines())


def test_replace() -> None:
    old = wanted()
    compare("replace", list(plan(replace(old, env={"SEED": "2"}), running(old)).lines()))


def test_down() -> None:
    seens = {one.host: one for one in running(wanted())}
    stages = (*plan_down(deployments(seens.values()), seens).stages, forget(seens))
    compare("down", list(Plan("x", (), stages).lines()))


@pytest.mark.parametrize("backend", ["ray", "mp"])
def test_no_line_holds_a_secret(backend: Backend) -> None:
    made = plan(ask(2, backend), crossed())
    shown = "\n".join(made.lines()) + repr(made)
    for secret in (*SECRETS.values(), "t0ken"):
        assert secret not in shown


def test_every_step_that_changes_can_be_taken_back() -> None:
    """But removing what is dead or replaced, and dropping caches, which say so by having no undo."""
    made = plan(ask(2, "ray"), crossed())
    without = {step.what for stage in made.stages for step in stage.steps if not step.undo}
    assert without == {"drop the page cache"}
    old = plan(replace(wanted(), env={"SEED": "2"}), running(wanted()))
    assert all(step.undo for stage in old.stages for step in stage.steps)
    assert [stage.name for stage in old.after] == ["remove the old"]


def test_files_of_a_rank() -> None:
    made = plan(ask(2, "ray"), crossed())
    [step, _] = next(stage.steps for stage in made.stages if stage.name == "prepare")
    puts = {change.path: change for change in step.changes if isinstance(change, Put)}
    home = f"{DATA}/deployments/{made.deployment}"
    private = {path.removeprefix(home + "/") for path, put in puts.items() if put.mode == 0o600}
    assert private == {"ray-token", "secrets.json", "api-key"}
    assert puts[f"{home}/rank.py"].data == source("rank")
    assert json.loads(puts[f"{home}/secrets.json"].data) == SECRETS
    differing = json.loads(puts[f"{home}/config/ray_non_carry_over_env_vars.json"].data)
    assert {"VLLM_HOST_IP", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} <= set(differing)
    assert "SEED" not in differing


def test_words_survive_a_shell() -> None:
    """The printed line, read by a shell's rules, is the argv that is sent."""
    made = plan(ask(2, "ray"), crossed())
    changes = [change for stage in made.stages for step in stage.steps for change in step.changes]
    printed = [tuple(shlex.split(line)) for line in made.lines() if not line.startswith("#")]
    assert printed == [change.argv for change in changes if isinstance(change, Question)]
