"""YAML as written: no guessing, no silent duplicates, and a line for every key."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.config.written import Written, parse_document, parse_value, read_document, resolve
from cluster.errors import UsageError


def error_of(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_document(text, "f.yaml")
    return caught.value.what


def test_scalars_stay_as_written() -> None:
    document = parse_document("a: on\nb: 22:22\nc: 1.10\nd: 0022\ne: 2026-04-15\nf: 'q'\ng: ~\nh:\ni: [1, x]\n", "f")
    assert document.values == {
        "a": "on",
        "b": "22:22",
        "c": "1.10",
        "d": "0022",
        "e": "2026-04-15",
        "f": "q",
        "g": None,
        "h": None,
        "i": ["1", "x"],
    }
    assert isinstance(document.values["a"], Written)
    assert not isinstance(document.values["f"], Written)


def test_every_key_has_its_line() -> None:
    document = parse_document("a:\n  b: 1\n  c:\n    - x\n    - y\n", "f")
    assert document.lines == {("a",): 1, ("a", "b"): 2, ("a", "c"): 3, ("a", "c", 0): 4, ("a", "c", 1): 5}
    assert document.where(("a", "nothing", "here")) == "f:1"
    assert document.where(()) == "f"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml: is empty; a mapping of keys to values is wanted"),
        ("# a comment\n", "f.yaml: is empty; a mapping of keys to values is wanted"),
        ("~", "f.yaml: is empty; a mapping of keys to values is wanted"),
        ("- a\n- b\n", "f.yaml:1: found a list; a mapping of keys to values is wanted"),
        ("\n\nhello world\n", "f.yaml:3: found `hello world`; a mapping of keys to values is wanted"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "f.yaml:4: b.c is there twice (first in line 3)"),
        ("1: a\n'1': b\n", "f.yaml:2: 1 is there twice (first in line 1)"),
        ("a:\n\tb: 1\n", "f.yaml:2:1: is not YAML: found a tab; YAML is indented with spaces"),
        (
            "a: b: c\n",
            "f.yaml:1:5: is not YAML: found a `:` where no key can stand (wrong indentation, or text that"
            " needs quotes)",
        ),
        ("a: [1, 2\nb: 3\n", "f.yaml:2:2: is not YAML: expected ',' or ']', but got ':'"),
        ("a: 'x\n", "f.yaml:2:1: is not YAML: found unexpected end of stream"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: is not YAML: found a second document (`---`); one is wanted"),
        (
            "a: !!python/object:os.system x\n",
            "f.yaml:1: found the tag `tag:yaml.org,2002:python/object:os.system`; plain values are wanted",
        ),
        ("[a]: b\n", "f.yaml:1: a key must be text, found a list or mapping"),
        ("? [a]\n: b\n", "f.yaml:1: a key must be text, found a list or mapping"),
        ("a: x\x07y\n", "f.yaml:1: is not text: character U+0007"),
        ("a: *b\n", "f.yaml:1:4: is not YAML: found undefined alias 'b'"),
        ("a: &a [*a]\n", "f.yaml:1: is nested too deeply or too large"),
        ("a: " + "[" * 40 + "]" * 40, "f.yaml:1: is nested too deeply or too large"),
        ("[" * 5000, "f.yaml: is nested too deeply"),
    ],
)
def test_what_is_no_mapping(text: str, message: str) -> None:
    assert error_of(text) == message


def test_an_alias_bomb_is_refused() -> None:
    rows = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    rows += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "nested too deeply or too large" in error_of("\n".join(rows))


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_bytes(b"\xef\xbb\xbfa: 1\r\nb:\r\n  - x\r\n")
    assert read_document(good).values == {"a": "1", "b": ["x"]}
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: 1\nb: \xff\xfe\n")
    big = tmp_path / "big.yaml"
    big.write_bytes(b"a" * ((1 << 20) + 1))
    for path, message in (
        (tmp_path, f"{tmp_path}: is a directory; a YAML file is wanted"),
        (tmp_path / "none.yaml", f"{tmp_path}/none.yaml: cannot be read: No such file or directory"),
        (binary, f"{binary}:2: is not UTF-8 text (byte 0xff)"),
        (big, f"{big}: is 1048577 bytes long; a YAML file of at most 1048576 is wanted"),
        (Path("/dev/zero"), "/dev/zero: is not a plain file; a YAML file is wanted"),
    ):
        with pytest.raises(UsageError) as caught:
            read_document(path)
        assert caught.value.what == message


def test_an_unreadable_file_is_said(tmp_path: Path) -> None:
    """Root reads everything, so the file lies in a folder that is a file: the same branch, another reason."""
    (tmp_path / "x").write_text("")
    with pytest.raises(UsageError) as caught:
        read_document(tmp_path / "x" / "y.yaml")
    assert caught.value.what == f"{tmp_path}/x/y.yaml: cannot be read: Not a directory"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("12", 12),
        ("-3", -3),
        ("0.85", 0.85),
        ("1e-5", 1e-5),
        (".5", 0.5),
        ("0777", "0777"),
        ("22:22", "22:22"),
        ("1_000", "1_000"),
        ("2026-04-15", "2026-04-15"),
        (".inf", ".inf"),
        ("'8'", "8"),
        ("'on'", "on"),
        ("fp8", "fp8"),
        ("{a: [1, '1']}", {"a": [1, "1"]}),
        ("", None),
        ("[]", []),
    ],
)
def test_values_without_a_type_of_their_own(text: str, value: object) -> None:
    found = resolve(parse_value(text, "--set x"))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["on", "Off", "YES", "no", "[a, no]", "{a: yes}"])
def test_words_that_yaml_versions_read_differently_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write true or false, or use quotes"):
        resolve(parse_value(text, "--set x"))
