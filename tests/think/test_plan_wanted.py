"""Hosts and sizes fit, or the message says how they would."""

from __future__ import annotations

from typing import Any

import pytest
from plan_tools import recipe, wanted

from cluster.errors import UsageError
from cluster.spark.request import Model, choose_sizes


def choose(count: int, **changes: Any) -> tuple[int, int, str]:
    """(number of hosts used, tp, backend)."""
    values: dict[str, Any] = {"tp": None, "pp": 1, "solo": False, "backend": None, "recipe": recipe()}
    hosts, tp, backend = choose_sizes(wanted(count).hosts, **values | changes)
    return len(hosts), tp, backend


@pytest.mark.parametrize(
    ("count", "changes", "expected"),
    [
        (2, {}, (2, 2, "ray")),
        (2, {"tp": 2}, (2, 2, "ray")),
        (3, {}, (3, 3, "ray")),
        (2, {"backend": "mp"}, (2, 2, "mp")),
        (2, {"recipe": recipe(backend="mp")}, (2, 2, "mp")),
        (2, {"recipe": recipe(backend="mp"), "backend": "ray"}, (2, 2, "ray")),
        (1, {}, (1, 1, "none")),
        (1, {"backend": "mp"}, (1, 1, "none")),
        (1, {"backend": "ray"}, (1, 1, "ray")),
        (2, {"solo": True}, (1, 1, "none")),
        (2, {"solo": True, "tp": 1}, (1, 1, "none")),
        (2, {"solo": True, "backend": "ray"}, (1, 1, "ray")),
        (2, {"pp": 2}, (2, 1, "ray")),
        (4, {"pp": 2}, (4, 2, "ray")),
        (4, {"tp": 2, "pp": 2}, (4, 2, "ray")),
    ],
)
def test_sizes(count: int, changes: dict[str, Any], expected: tuple[int, int, str]) -> None:
    assert choose(count, **changes) == expected


@pytest.mark.parametrize(
    ("count", "changes", "message", "remedy"),
    [
        (2, {"tp": 4}, "--tp 4 needs 4 hosts (one GPU each), 2 named: spark1, spark2", "or use --tp 2"),
        (3, {"tp": 2}, "--tp 2 uses 2 of 3 hosts: spark1, spark2, spark3", "-n spark1,spark2, or --tp 3"),
        (2, {"tp": 1}, "--tp 1 uses 1 of 2 hosts", "-n spark1, or --tp 2"),
        (2, {"tp": 2, "pp": 2}, "--tp 2 --pp 2 needs 4 hosts", "name 4 hosts with -n"),
        (3, {"pp": 2}, "3 hosts cannot be divided by --pp 2", ""),
        (2, {"solo": True, "tp": 2}, "--solo means one host", "leave one out"),
        (2, {"solo": True, "pp": 2}, "--solo means one host", "leave one out"),
        (2, {"tp": 0}, "sizes are 1 or more", ""),
        (2, {"pp": 0}, "sizes are 1 or more", ""),
        (2, {"tp": -2}, "sizes are 1 or more", ""),
    ],
)
def test_sizes_that_do_not_fit(count: int, changes: dict[str, Any], message: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose(count, **changes)
    assert message in caught.value.what
    assert remedy in caught.value.remedy


def test_the_head_is_the_first_named() -> None:
    turned = tuple(reversed(wanted(2).hosts))
    hosts, _, _ = choose_sizes(turned, tp=None, pp=1, solo=True, backend=None, recipe=recipe())
    assert [host.name for host in hosts] == ["spark2"]


def test_the_name_in_the_api() -> None:
    assert wanted().served_name == "example/toy"
    assert wanted(of=recipe(served_model_name="toy")).served_name == "toy"


MAIN, RANDOM, DRAFTER = (
    Model("example/toy", "main", None),
    Model("example/toy", "main", dummy=True),
    Model("a/b", "main"),
)
DUMMY = {"load-format": "dummy"}
LONG = {"speculative-config": {"model": "a/b", "revision": "r1"}}
RANDOM_DRAFTER = {"model": "a/b", "draft_load_config": {"load_format": "dummy"}}


@pytest.mark.parametrize(
    ("vllm", "words", "models"),
    [
        ({}, (), [MAIN]),
        (LONG, (), [MAIN, Model("a/b", "r1")]),
        ({"spec-model": "a/b"}, (), [MAIN, DRAFTER]),
        ({"spec-model": "a/b", "speculative-config": {"revision": "r1"}}, (), [MAIN, Model("a/b", "r1")]),
        ({"speculative-config.model": "a/b"}, (), [MAIN, DRAFTER]),
        ({"speculative-config": '{"model": "a/b"}'}, (), [MAIN, DRAFTER]),
        ({}, ("--spec-model", "a/b"), [MAIN, DRAFTER]),
        ({}, ("--spec_model=a/b", "--seed", "1"), [MAIN, DRAFTER]),
        ({}, ("-sc", '{"model": "a/b"}'), [MAIN, DRAFTER]),
        (LONG, ("--speculative-config.model", "c/d"), [MAIN, Model("c/d", "r1")]),
        ({"spec-method": "ngram", "spec-model": "ngram"}, (), [MAIN]),
        (DUMMY, (), [RANDOM]),
        ({}, ("--load-format=dummy",), [RANDOM]),
        (DUMMY, ("--load-format", "auto"), [MAIN]),
        (DUMMY | LONG, (), [RANDOM, Model("a/b", "r1", dummy=True)]),
        ({"speculative-config": RANDOM_DRAFTER}, (), [MAIN, Model("a/b", "main", dummy=True)]),
    ],
)
def test_the_models_that_hosts_need(vllm: dict[str, Any], words: tuple[str, ...], models: list[Model]) -> None:
    one = wanted(of=recipe(vllm=vllm), words=words)
    assert list(one.models) == models
    assert one.random_weights == models[0].dummy
