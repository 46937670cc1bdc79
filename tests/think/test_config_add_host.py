"""A host is added to an inventory's text; every other byte stays."""

from __future__ import annotations

import pytest

from cluster.config.inventory import HEADER, with_host
from cluster.errors import UsageError

VALUES: dict[str, str | int] = {"address": "10.0.0.2", "port": 2222}
BLOCK = "  new:\n    address: 10.0.0.2\n    port: 2222\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"{HEADER}hosts:\n{BLOCK}"),
        ("# mine\n", f"# mine\nhosts:\n{BLOCK}"),
        ("groups: {}", f"groups: {{}}\nhosts:\n{BLOCK}"),
        ("hosts: {}  # none yet\n# end\n", f"hosts:  # none yet\n{BLOCK}# end\n"),
        (
            "hosts:\n  a:\n    address: x  # one\n    # about a\n\n# groups\ngroups: {g: [a]}\n",
            f"hosts:\n  a:\n    address: x  # one\n{BLOCK}    # about a\n\n# groups\ngroups: {{g: [a]}}\n",
        ),
        (
            "defaults:\n  user: u\nhosts:\n  a:\n    address: x",
            f"defaults:\n  user: u\nhosts:\n  a:\n    address: x\n{BLOCK}",
        ),
        (
            "hosts:\n      a: {address: x}   # odd\n\n\ngroups: {}\n",
            "hosts:\n      a: {address: x}   # odd\n      new: {address: 10.0.0.2, port: 2222}\n\n\ngroups: {}\n",
        ),
        (
            "hosts:\n  a:\n    address: x\n    env:\n      T: |\n        two\n        lines\ndefaults: {}\n",
            f"hosts:\n  a:\n    address: x\n    env:\n      T: |\n        two\n        lines\n{BLOCK}defaults: {{}}\n",
        ),
        (
            "hosts:\n  a:\n    address: x\n    fabric:\n    - n1\n    - n2\n",
            f"hosts:\n  a:\n    address: x\n    fabric:\n    - n1\n    - n2\n{BLOCK}",
        ),
        ("hosts:\r\n  a:\r\n    address: x\r\n", "hosts:\r\n  a:\r\n    address: x\r\n" + BLOCK.replace("\n", "\r\n")),
    ],
)
def test_a_host_is_added(before: str, after: str) -> None:
    assert with_host(before, "new", VALUES, "i.yaml") == after


@pytest.mark.parametrize("name", ["on", "1.10", "22:22x"[:2], "spärk", "~"])
def test_names_that_yaml_might_misread_come_back(name: str) -> None:
    from cluster.config.written import parse_document

    text = with_host("hosts:\n  a: {address: x}\n", name, VALUES, "i.yaml")
    assert list(parse_document(text, "i.yaml").values["hosts"]) == ["a", name]


@pytest.mark.parametrize(
    ("before", "what"),
    [
        ("hosts:\n  new: {address: x}\n", "i.yaml: hosts.new is there already"),
        ("hosts: {a: {address: x}}\n", "i.yaml: a host cannot be added to hosts as it is written"),
        ("{hosts: {a: {address: x}}}\n", "i.yaml: a host cannot be added to hosts as it is written"),
        ("hosts:\n  a: {adress: x}\n", "i.yaml:2: hosts.a.address: is missing"),
        ("hosts: [\n", "i.yaml:2:1: is not YAML"),
        ("- a\n", "i.yaml:1: found a list"),
    ],
)
def test_what_cannot_be_added_to_is_left_alone(before: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        with_host(before, "new", VALUES, "i.yaml")
    assert caught.value.what.startswith(what)


def test_the_lines_to_add_by_hand_are_given() -> None:
    with pytest.raises(UsageError) as caught:
        with_host("hosts: {a: {address: x}}\n", "new", VALUES, "i.yaml")
    assert caught.value.remedy == f"add by hand:\n{BLOCK}"
