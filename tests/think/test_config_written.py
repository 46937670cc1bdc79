"""Files as users write them: YAML without guessing, models without unknown keys; each error has code, file and line."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_tools import refusal
from loops import each
from pydantic import BaseModel
from secret_cases import INNOCENT, SECRET

from cluster.config.inventory import Inventory, InventoryFile, inventory_problems, read_inventory
from cluster.config.recipe import Recipe, read_recipe
from cluster.config.written import (
    ITEM,
    NAME,
    Written,
    annotated,
    keys,
    parse_document,
    parse_value,
    read_document,
    read_text,
    resolve,
    validate,
)
from cluster.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
RECIPE = "model: a/b\nimage: x:1\n"


def error_of(text: str, model: type[BaseModel] = Recipe) -> UsageError:
    return refusal(lambda: validate(model, parse_document(text, "f.yaml")))


def with_line(line: str) -> str:
    """The recipe with a line at its end, instead of the one with the same key."""
    key = line.partition(":")[0]
    return "".join(f"{row}\n" for row in RECIPE.splitlines() if row.partition(":")[0] != key) + f"{line}\n"


def test_scalars_stay_as_written() -> None:
    text = "a: on\nb: 22:22\nc: 1.10\nd: 0022\ne: 2026-04-15\nf: 'q'\ng: ~\nh:\ni: [1, x]\n"
    document = parse_document(text, "f")
    assert list(document.values.values()) == ["on", "22:22", "1.10", "0022", "2026-04-15", "q", None, None, ["1", "x"]]
    assert isinstance(document.values["a"], Written)
    assert not isinstance(document.values["f"], Written)


def test_every_key_has_its_line() -> None:
    document = parse_document("a:\n  b: 1\n  c:\n    - x\n    - y\n", "f")
    lines = {"a": 1, "a.b": 2, "a.c": 3, "a.c.0": 4, "a.c.1": 5, "a.nothing.here": 1}
    for path, line in lines.items():
        parts = tuple(int(part) if part.isdigit() else part for part in path.split("."))
        assert document.where(parts) == f"f:{line}"
    assert document.where(()) == document.where(("b",)) == "f"


@each(
    "text, place",
    [
        ("# a comment\n", "f.yaml"),
        ("~", "f.yaml"),
        ("\n\nhello world\n", "f.yaml:3"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "f.yaml:4: b.c"),
        ("a: [1, 2\nb: 3\n", "f.yaml:2:2"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1"),
        ("a: !!python/object:os.system x\n", "f.yaml:1"),
        ("? [a]\n: b\n", "f.yaml:1"),
        ("a: x\x07y\n", "f.yaml:1"),
        ("a: *b\n", "f.yaml:1:4"),
        ("a: &a [*a]\n", "f.yaml:1"),
        ("a: " + "[" * 40 + "]" * 40, "f.yaml:1"),
        ("[" * 5000, "f.yaml"),
        (
            "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
            + "\n".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)),
            "f.yaml:",
        ),
    ],
)
def test_what_is_not_a_mapping(text: str, place: str) -> None:
    error = error_of(text)
    assert error.code == "yaml-invalid"
    assert error.what.startswith(place if place.endswith(":") else f"{place}: ")


def test_a_pipe_that_nobody_writes_to_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert read_text(tmp_path / "pipe.yaml") == ""
    reader, writer = os.pipe()  # as a shell's <(…)
    later = threading.Timer(0.2, lambda: (os.write(writer, b"a: 1"), os.close(writer)))
    later.start()
    assert read_text(Path(f"/dev/fd/{reader}")) == "a: 1"
    later.join()
    os.close(reader)


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_bytes(b"\xef\xbb\xbfa: 1\r\nb:\r\n  - x\r\n")
    assert read_document(good).values == {"a": "1", "b": ["x"]}
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: 1\nb: \xff\xfe\n")
    big = tmp_path / "big.yaml"
    big.write_bytes(b"a" * ((1 << 20) + 1))
    for path, place in (
        (tmp_path, f"{tmp_path}: "),
        (tmp_path / "none.yaml", f"{tmp_path}/none.yaml: "),
        (good / "y.yaml", f"{good}/y.yaml: "),
        (binary, f"{binary}:2: "),
        (big, f"{big}: "),
        (Path("/dev/zero"), "/dev/zero: "),
    ):
        error = refusal(read_document, path)
        assert error.code == "file-unreadable"
        assert error.what.startswith(place)


@each(
    "text, value",
    [
        ("true", True),
        ("12", 12),
        ("0.85", 0.85),
        ("1e-5", 1e-5),
        ("0777", "0777"),
        ("22:22", "22:22"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        ("'8'", "8"),
        ("fp8", "fp8"),
        ("{a: [1, '1']}", {"a": [1, "1"]}),
        ("", None),
    ],
)
def test_values_without_a_type_of_their_own(text: str, value: object) -> None:
    found = resolve(parse_value(text, "--set x"))
    assert found == value
    assert type(found) is type(value)


@each("text", ["on", "Off", "YES", "no", "[a, no]", "{a: yes}"])
def test_words_that_yaml_versions_read_differently_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ambiguous"):
        resolve(parse_value(text, "--set x"))


@each(
    "host, code, place, named",
    [
        ("{}", "key-missing", "hosts.s", "`address`"),
        ("{address: a, zzz: 22}", "unknown-key", "hosts.s", "known keys: address, user, port"),
        ("{address: a, port: 70000}", "value-invalid", "hosts.s.port", "`70000`"),
        ("{address: [a]}", "value-invalid", "hosts.s.address", "a list"),
        ("5", "value-invalid", "hosts.s", "a mapping with address"),
        ("{address: -oProxyCommand=x}", "value-invalid", "hosts.s.address", "`-oProxyCommand=x`"),
        ("{address: a, user: 'b c'}", "value-invalid", "hosts.s.user", "`b c`"),
        ("{address: a, fabric: [-x]}", "value-invalid", "hosts.s.fabric.0", "`-x`"),
        ("{address: a, data_dir: srv}", "value-invalid", "hosts.s.data_dir", "`srv`"),
        ("{address: a, env: {A B: c}}", "value-invalid", "hosts.s.env", "`A B`"),
        ("{address: a, env: {HF_TOKEN: hf_x}}", "value-invalid", "hosts.s.env.HF_TOKEN", "-e HF_TOKEN"),
        ("{address: a, env: {X: [1]}}", "value-invalid", "hosts.s.env.X", "a list"),
    ],
)
def test_a_host_of_an_inventory(host: str, code: str, place: str, named: str) -> None:
    error = error_of(f"hosts:\n  s: {host}\n", Inventory)
    assert (error.code, error.what.startswith(f"f.yaml:2: {place}: ")) == (code, True), error.what
    assert named in error.what


@each(
    "text, code, place",
    [
        ("hosts: []\n", "value-invalid", "1: hosts: "),
        ("hosts: {s: {address: a}}\ngroups:\n  s: [s]\n", "value-invalid", "3: groups.s: "),
        ("hosts: {s: {address: a}}\ngroups:\n  g: [s, s]\n", "value-invalid", "3: groups.g: "),
        ("hosts: {s: {address: a}}\ngroups:\n  g: []\n", "value-invalid", "3: groups.g: "),
        ("hosts: {'a,b': {address: a}}\n", "value-invalid", "1: hosts.a,b: "),
        ("hosts: {-n: {address: a}}\n", "value-invalid", "1: hosts.-n: "),
        ('hosts: {"a\\u0308": {address: a}, "\\u00e4": {address: b}}\n', "yaml-invalid", "1: hosts.ä: "),
    ],
)
def test_an_inventory(text: str, code: str, place: str) -> None:
    error = error_of(text, Inventory)
    assert (error.code, error.what.startswith(f"f.yaml:{place}")) == (code, True), error.what


@each(
    "line, place, named",
    [
        ("modle: x", "", "unknown key `modle`; did you mean `model`?"),
        ("mounts: [{source: a}]", "mounts.0", "missing key `target`"),
        ("backend: rya", "backend", "expected `ray` or `mp`, got `rya`"),
        ("transport: tcp", "transport", "`rdma` or `socket`"),
        ("weights: on", "weights", "`real` or `dummy`, got `on`"),
        ("bench: {tg: []}", "bench.tg", "an empty list"),
        ("bench: {depth: [0, -1]}", "bench.depth.1", "a whole number, 0 or more, got `-1`"),
        ("memory: {per_host_gib: {two: 5}}", "memory.per_host_gib.two", "`two`"),
        ("needs: {transformers: new}", "needs.transformers", "`new`"),
        ("image: a b", "image", "`a b`"),
        ("model: ./here", "model", "`./here`"),
        ("revision: -x", "revision", "`-x`"),
        ("vllm: {enforce-eager: }", "vllm.enforce-eager", "--no-"),
        ("vllm: {--max-num-seqs: 8}", "vllm", "`--max-num-seqs`"),
        ("vllm: {max_num_seqs: 8, max-num-seqs: 4}", "vllm.max-num-seqs", "duplicate"),
        ("vllm: [a]", "vllm", "a mapping of names to values, got a list"),
        ("mounts: [{source: a, target: b}]", "mounts.0.target", "`b`"),
        ("mounts: [{source: a, target: /b/}]", "mounts.0.target", "`/b/`"),
        ("mounts: [{source: a, target: /a/../b}]", "mounts.0.target", "`/a/../b`"),
        ("mounts: [{source: a, target: dist-packages/x}]", "mounts.0.target", "`dist-packages/x`"),
        ("mounts: [{model_file: ../a.py, target: /x}]", "mounts.0.model_file", "`../a.py`"),
        ("mounts: [{source: a, model_file: b, target: /x}]", "mounts.0", "one of source and model_file"),
        ("mounts: [{source: a, target: /b}, {source: c, target: /b}]", "mounts", "`/b`"),
        ("expect_log: {require: ['(']}", "expect_log.require.0", "`(`"),
        ("expect_log: {forbid: ['(']}", "expect_log.forbid.0", "`(`"),
        ("reference: [{source: a, depth_mode: warm}]", "reference.0.depth_mode", "`cold` or `prefix-caching`"),
        ("reference: [{source: a, depth_mode: cold, rows: [{test: x}]}]", "reference.0.rows.0.test", "`x`"),
        (
            "reference: [{source: a, depth_mode: cold, rows: [{test: tg32, t_s_sd: x}]}]",
            "reference.0.rows.0.t_s_sd",
            "`x`",
        ),
        ("problems: [{what: a, workaround: [b]}]", "problems.0.workaround", "a list"),
        ("env: {VLLM_API_KEY: abc}", "env.VLLM_API_KEY", "-e VLLM_API_KEY"),
        ("vllm: {api-key: sesame}", "vllm.api-key", "-e VLLM_API_KEY"),
        ("vllm: {hf-overrides: {t: {hf_token: sesame}}}", "vllm.hf-overrides.t.hf_token", "-e HF_TOKEN"),
        ("before_serve: [[login, hf_sesameaaaaaaaaaaaaaa]]", "before_serve", "-e NAME"),
    ],
)
def test_a_recipe(line: str, place: str, named: str) -> None:
    text = with_line(line)
    error = error_of(text, Recipe)
    number = len(text.splitlines())
    kinds = {"unknown": "unknown-key", "missing": "key-missing"}
    assert error.code == kinds.get(named.split()[0], "value-invalid")
    assert error.what.startswith(f"f.yaml:{number}: " + (f"{place}: " if place else "")), error.what
    assert named in error.what
    assert "sesame" not in error.what


@each(
    "line",
    [
        "mounts: [{source: a, target: site-packages/vllm/x.py}, {model_file: p/a.py, target: /opt/..a/x}]",
        "model: /srv/models/a-b_c",
        "image: reg:5000/x/y@sha256:ab",
        "reference: [{source: a, depth_mode: cold, rows: [{test: 'pp2048 @ d4096 (c4)'}, {test: ctx_tg}]}]",
    ],
)
def test_forms_that_are_valid(line: str) -> None:
    validate(Recipe, parse_document(with_line(line), "f.yaml"))


def test_sensible_readings_are_accepted() -> None:
    text = (
        f"{RECIPE}revision: 1.10\nenv: {{A: 1, B: on, C: 22:22, TOKENIZERS_PARALLELISM: false, MAX_TOKENS: 5}}\n"
        "vllm: {max_model_len: 4096, x.y_z: 1, flag: true, t: 22:22}\nport: '8001'\nbench: {runs: 5}\n"
        "memory: {per_host_gib: {1: 50, 2: 30.5}}\nsummary:\nneeds:\n"
    )
    recipe = validate(Recipe, parse_document(text, "f"))
    assert recipe.revision == "1.10"
    assert list(recipe.env.values()) == ["1", "on", "22:22", "false", "5"]
    assert recipe.vllm == {"max-model-len": 4096, "x.y_z": 1, "flag": True, "t": "22:22"}
    assert (recipe.port, recipe.bench.runs, recipe.summary) == (8001, 5, "")
    assert recipe.memory.per_host_gib == {1: 50.0, 2: 30.5}


def test_unicode_names_and_ipv6_are_fine() -> None:
    text = "hosts:\n  spärk: {address: fe80::1%enP7s7}\n  火花: {address: '::1', port: 2222}\ngroups: {g: [火花]}\n"
    inventory = validate(Inventory, parse_document(text, "f"))
    assert list(inventory.hosts) == ["spärk", "火花"]
    text = 'hosts: {"\\u00e4": {address: x}}\ngroups: {g: ["a\\u0308"]}\n'
    assert validate(Inventory, parse_document(text, "f")).groups == {"g": ["ä"]}


def test_many_problems_make_few_lines() -> None:
    hosts = "".join(f"  s{n}: {{prot: 1}}\n" for n in range(9))
    lines = error_of(f"hosts:\n{hosts}", Inventory).what.splitlines()
    assert lines[0].startswith("f.yaml:2: hosts.s0: missing key `address`")
    assert lines[-1] == "… and 14 more"
    assert len(lines) == 5


@each("name, value", SECRET.items())
def test_no_file_holds_a_secret(name: str, value: str) -> None:
    written = json.dumps({name: value})
    host = f"hosts: {{s: {{address: a, env: {written}}}}}\n"
    texts = (f"{RECIPE}env: {written}\n", f"hosts: {{}}\ndefaults: {{env: {written}}}\n", host)
    for model, text in zip((Recipe, Inventory, Inventory), texts, strict=True):
        message = error_of(text, model).what
        assert f"env.{name}: looks like a secret" in message
        assert value not in message
    assert value not in error_of(f"{RECIPE}env: {{{name}: [{value}]}}\n", Recipe).what


@each("name, value", INNOCENT.items())
def test_a_file_holds_what_is_no_secret(name: str, value: str) -> None:
    text = f"{RECIPE}env: {json.dumps({name: value})}\n"
    assert validate(Recipe, parse_document(text, "f.yaml")).env == {name: value}


def paths(value: Any, prefix: str = "") -> set[str]:
    """Dotted paths of a value; names that belong to the user become NAME."""
    if isinstance(value, list):
        return {path for item in value for path in paths(item, f"{prefix}{ITEM}")}
    if not isinstance(value, dict):
        return set()
    found = set()
    for key, inner in value.items():
        name = NAME if prefix in ("hosts.", "groups.") or prefix.endswith("env.") else key
        found |= {f"{prefix}{name}"} | paths(inner, f"{prefix}{name}.")
    return found


def test_the_example_has_every_key_and_loads() -> None:
    example = ROOT / "inventory/example.yaml"
    assert not [line for line in inventory_problems(InventoryFile(read_inventory(example), example)) if "same" in line]
    written = paths(yaml.safe_load(example.read_text(encoding="utf-8")))
    assert {key.path for key in keys(Inventory)} - written == set()


def test_types_in_words() -> None:
    kinds = {key.path: (key.kind, key.default, key.required) for key in (*keys(Inventory), *keys(Recipe))}
    words = {
        "hosts.NAME.port": "a whole number from 0 to 65535",
        "groups": "a mapping of names to lists of text",
        "backend": "`ray` or `mp`",
        "before_serve": "a list of lists of text",
        "memory.per_host_gib": "a mapping of whole numbers to numbers above 0",
        "reference[].rows[].t_s": "a number above 0",
        "bench.depth": "a list of whole numbers, 0 or more",
    }
    assert {path: kinds[path][0] for path in words} == words
    assert kinds["hosts.NAME.address"] == ("text", "", True)
    assert kinds["bench.depth"][1:] == ("[0, 4096, 8192, 16384]", False)


@each("path", sorted((ROOT / "recipes").glob("*.yaml")))
def test_what_show_prints_is_the_same_recipe(path: Path) -> None:
    recipe = read_recipe(path)
    text = annotated(recipe)
    assert validate(Recipe, parse_document(text, "shown")) == recipe
    assert all(len(line) <= 110 for line in text.splitlines() if line.startswith("#"))


def test_show_marks_what_is_a_default() -> None:
    text = annotated(Recipe(model="a/b", image="x:1", env={"A": "1", "B": "on"}))
    assert "# port of the OpenAI API on the head (default)\nport: 8000\n" in text
    assert "# environment of every rank; never a secret\nenv:\n  A: '1'\n  B: 'on'\n" in text
