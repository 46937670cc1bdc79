"""Rules as values: complete, found by their own plain text, and all in the table of the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from diagnosis_table import DOC, MARK, document
from loops import each

from cluster.argv.docker import RankContainer, docker_run
from cluster.argv.fabric import fabric_environment
from cluster.argv.ray import ray_environment
from cluster.diagnosis.outputs import SETTLERS
from cluster.diagnosis.rules import EXPLAINS, MEANS, OF_OUTPUTS, OF_PAIRS, RULES, Rule, compiled, fill, read_rules

EVERY = (*RULES, *OF_OUTPUTS.values(), *OF_PAIRS.values())
KNOWN = {rule.id for rule in RULES} | set(OF_OUTPUTS) | set(OF_PAIRS)


SET_UP = {
    word for word in docker_run(RankContainer("n", "i", "python3", infiniband=True)).argv if word.startswith("--")
}
SET_UP |= {"--ipc", "ray start", *fabric_environment(address="", netdev="", hcas=("h",))}
SET_UP |= {*ray_environment(head="", ray_version="2.56.0")}
"""What `cluster` gives to each rank by itself."""


@each("rule", EVERY, ids=lambda rule: rule.id)
def test_rule(rule: Rule) -> None:
    """That its page exists is tested in test_runbooks_docs, that a sample shows it in test_diagnosis_samples."""
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", rule.id)
    assert rule.cause
    assert rule.source
    assert rule.remedy or rule.level == "normal"
    assert rule.page or rule.level in ("normal", "note")
    assert bool(rule.pattern) == (rule in RULES)
    placeholders = re.findall(r"(?<!\{)\{(\w+)\}(?!\})", rule.cause + rule.remedy)
    named = {name.removesuffix("_means") for name in placeholders}
    assert not rule.pattern or named <= set(compiled(rule.pattern).groupindex)
    assert all(name.removesuffix("_means") in MEANS for name in placeholders if name.endswith("_means"))
    assert not rule.pattern or not rule.search("")
    own = (rule.remedy if rule.own is None else rule.own).partition("docker run --rm")[0]  # a look, no start
    told = {word for word in SET_UP if re.search(rf"(?<![\w-]){word}(?![\w-])", own)}
    assert not told or rule.level in ("note", "normal"), "ranks of cluster have it"
    for remedy in filter(None, (rule.remedy, rule.own)):
        asked = "systemctl status" in remedy.partition("kill ")[0]
        assert asked or not re.search(r"\bkill\b(?! -0)", remedy), "nobody asked whose process it is"


def test_what_a_line_does_not_name_leaves_no_empty_end() -> None:
    assert fill("it crashed: {a}{b}", {"a": "", "b": ""}) == "it crashed"
    assert (
        fill("failed (Xid {xid}: {means}); again: {a}", {"xid": 9, "means": "", "a": "x"}) == "failed (Xid 9); again: x"
    )


def test_tables_name_rules_that_exist_and_no_circle() -> None:
    assert {*SETTLERS, *EXPLAINS, *(id for ids in EXPLAINS.values() for id in ids)} <= KNOWN
    assert [(id, other) for id, ids in EXPLAINS.items() for other in ids if id in EXPLAINS.get(other, ())] == []


def test_the_docs_have_the_table() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert text == document(text.split(MARK)[0]), "run tests/think/diagnosis_table.py"


def test_an_id_has_one_meaning() -> None:
    meanings: dict[str, set[object]] = {}
    for rule in RULES:
        meanings.setdefault(rule.id, set()).add((rule.level, rule.remedy[:20], rule.page, rule.explains))
    assert {id: found for id, found in meanings.items() if len(found) > 1} == {}


def test_a_field_that_no_rule_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("- {id: a, cause: b, remdy: c}\n")
    with pytest.raises(TypeError, match="remdy"):
        read_rules("x", tmp_path)
