"""Answers of another model, or of a part of the prompt, are no measurement."""

import dataclasses

import pytest
from bench_tools import trace

from cluster.bench.endpoint import Asked, check_answer, remedy_of, same_name
from cluster.bench.read import RequestTrace

MANY = Asked("daily", alone=False)


def answered(**given: object) -> RequestTrace:
    return dataclasses.replace(trace("plain"), **{"model": "daily", "prompt_tokens": 512, **given})


@pytest.mark.parametrize(
    ("given", "same"), [("daily", True), ("Daily:latest", True), ("openai/daily", True), ("daily-small", False)]
)
def test_names(given: str, same: bool) -> None:
    assert same_name("daily", given) == same
    assert (check_answer(answered(model=given), MANY, 512).error == "") == same


def test_another_name_of_the_model_or_of_the_only_model_is_no_failover() -> None:
    assert check_answer(answered(model="root"), dataclasses.replace(MANY, names=("root",)), 512).error == ""
    assert check_answer(answered(model="whatever"), Asked("daily", alone=True), 512).error == ""
    assert check_answer(answered(model=""), MANY, 512).error == ""


def test_failover_is_told_by_name() -> None:
    said = check_answer(answered(model="spare"), MANY, 512).error
    assert said == "another model answered: spare instead of daily"
    assert "fallbacks" in remedy_of(said)


@pytest.mark.parametrize(
    ("exact", "counted", "cut"),
    [(True, 511, True), (True, 512, False), (True, 530, False), (False, 400, False), (False, 256, True)],
)
def test_cut_prompts(exact: bool, counted: int, cut: bool) -> None:
    said = check_answer(answered(prompt_tokens=counted), Asked("daily", exact=exact), 512).error
    assert bool(said) == cut
    assert not cut or said == f"the prompt was cut: the server read {counted} of 512 tokens"


def test_what_failed_or_was_not_counted_is_left_alone() -> None:
    assert check_answer(answered(error="time-out", model="spare"), MANY, 512).error == "time-out"
    assert check_answer(answered(prompt_tokens=None), MANY, 512).error == ""
    assert remedy_of("time-out") == ""
