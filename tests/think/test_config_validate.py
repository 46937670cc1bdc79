"""What an inventory or a recipe may not say, each with its one line."""

from __future__ import annotations

import json

import pytest
from loops import each
from pydantic import BaseModel
from secret_cases import INNOCENT, SECRET

from cluster.config.inventory import Inventory
from cluster.config.recipe import Recipe
from cluster.config.validate import validate
from cluster.config.written import parse_document
from cluster.errors import UsageError

RECIPE = "model: a/b\nimage: x:1\n"


def error_of(model: type[BaseModel], text: str) -> str:
    with pytest.raises(UsageError) as caught:
        validate(model, parse_document(text, "f.yaml"))
    return caught.value.what


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("{}", "hosts.s.address: is missing (management address, or a name that ssh knows; IPv6 without brackets)"),
        (
            "{address: }",
            "hosts.s.address: is missing (management address, or a name that ssh knows; IPv6 without brackets)",
        ),
        ("{address: a, prot: 22}", "hosts.s.prot: is no key here; nearest: port"),
        (
            "{address: a, zzz: 22}",
            "hosts.s.zzz: is no key here; known: address, user, port, identity_file, jump,"
            " known_hosts_file, fabric, data_dir, hf_home, env",
        ),
        (
            "{address: a, port: 22:22}",
            "hosts.s.port: found `22:22`, wanted a whole number from 0 to 65535 (SSH port; 0: what ssh would use)",
        ),
        (
            "{address: a, port: 70000}",
            "hosts.s.port: found `70000`, wanted a whole number from 0 to 65535 (SSH port; 0: what ssh would use)",
        ),
        (
            "{address: a, port: 22.5}",
            "hosts.s.port: found `22.5`, wanted a whole number from 0 to 65535 (SSH port; 0: what ssh would use)",
        ),
        (
            "{address: [a]}",
            "hosts.s.address: found a list, wanted text (management address, or a name that ssh knows;"
            " IPv6 without brackets)",
        ),
        (
            "5",
            "hosts.s: found `5`, wanted a mapping with address, user, port, identity_file, jump,"
            " known_hosts_file, fabric, data_dir, hf_home, env (the machines, by the name you call them)",
        ),
        (
            "{address: '[::1]'}",
            "hosts.s.address: found `[::1]`; an IPv6 address is written without brackets, the port has its own key",
        ),
        ("{address: 'a:22'}", "hosts.s.address: found `a:22`, no IPv6 address; the port has its own key, `port`"),
        ("{address: me@a}", "hosts.s.address: found `me@a`; the login name has its own key, `user`"),
        (
            "{address: 10.0.0.0/8}",
            "hosts.s.address: found `10.0.0.0/8`; an address or a name is wanted, no URL and no subnet",
        ),
        (
            "{address: -oProxyCommand=x}",
            "hosts.s.address: found `-oProxyCommand=x`; one word without blanks and without a dash in front is wanted",
        ),
        (
            "{address: a, user: 'b c'}",
            "hosts.s.user: found `b c`; one word without blanks and without a dash in front is wanted",
        ),
        (
            "{address: a, data_dir: srv}",
            "hosts.s.data_dir: found `srv`; a path on the host that starts with / or ~/ is wanted",
        ),
        (
            "{address: a, env: {A B: c}}",
            "hosts.s.env: `A B` is no name of an environment variable (letters, digits and _)",
        ),
        (
            "{address: a, env: {HF_TOKEN: hf_x}}",
            "hosts.s.env.HF_TOKEN: looks like a secret, which no file here may hold; give it with -e HF_TOKEN",
        ),
        (
            "{address: a, env: {X: [1]}}",
            "hosts.s.env.X: found a list, wanted text (environment of this host's rank only; never a secret)",
        ),
    ],
)
def test_a_host_of_an_inventory(host: str, message: str) -> None:
    assert error_of(Inventory, f"hosts:\n  s: {host}\n") == f"f.yaml:2: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host: {}\n", "f.yaml:1: host: is no key here; nearest: hosts"),
        (
            "hosts: []\n",
            "f.yaml:1: hosts: found an empty list, wanted a mapping of names to mappings with address,"
            " user, port, identity_file, jump, known_hosts_file, fabric, data_dir, hf_home, env (the machines, by the"
            " name you call them)",
        ),
        ("hosts: {s: {address: a}}\ngroups:\n  all: [s, t]\n", "f.yaml:3: groups.all: `t` is no host; hosts: s"),
        ("hosts: {s: {address: a}}\ngroups:\n  s: [s]\n", "f.yaml:3: groups.s: a host has the same name"),
        (
            "hosts: {s: {address: a}}\ngroups:\n  g: [s, s]\n",
            "f.yaml:3: groups.g: found s, s, wanted one or more different hosts",
        ),
        (
            "hosts: {s: {address: a}}\ngroups:\n  g: []\n",
            "f.yaml:3: groups.g: found none, wanted one or more different hosts",
        ),
        (
            "hosts: {'a,b': {address: a}}\n",
            "f.yaml:1: hosts: `a,b` cannot be a name: no blanks, none of , @ : / [ ] and no dash in front",
        ),
        (
            "hosts: {-n: {address: a}}\n",
            "f.yaml:1: hosts: `-n` cannot be a name: no blanks, none of , @ : / [ ] and no dash in front",
        ),
        (
            'hosts: {"a\\u0308": {address: a}, "\\u00e4": {address: b}}\n',
            "f.yaml:1: hosts: two names are equal in Unicode's composed form",
        ),
    ],
)
def test_an_inventory(text: str, message: str) -> None:
    assert error_of(Inventory, text) == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("modle: x", "modle: is no key here; nearest: model"),
        (
            "shm_gib: 16g",
            "shm_gib: found `16g`, wanted a number above 0 (size of the container's private /dev/shm in GiB)",
        ),
        (
            "ready_timeout_s: 30m",
            "ready_timeout_s: found `30m`, wanted a number above 0 (longest wait in seconds from"
            " the first container to a proven answer)",
        ),
        (
            "backend: rya",
            "backend: found `rya`, wanted `ray` or `mp` (how ranks find each other when there is more than one)",
        ),
        (
            "weights: on",
            "weights: found `on`, wanted `real` or `dummy` (dummy: weights are random, so the text of"
            " answers is not judged, and that is said everywhere)",
        ),
        ("bench: {tg: 128}", "bench.tg: found `128`, wanted a list of whole numbers, 1 or more (generated tokens)"),
        (
            "bench: {tg: []}",
            "bench.tg: found an empty list, wanted a list of whole numbers, 1 or more (generated tokens)",
        ),
        (
            "bench: {depth: [0, -1]}",
            "bench.depth.1: found `-1`, wanted a whole number, 0 or more (tokens of context before the prompt)",
        ),
        (
            "memory: {per_host_gib: {two: 5}}",
            "memory.per_host_gib.two: found `two`, wanted a whole number, 1 or"
            " more (MemAvailable in GiB that one host needs before the start, by tensor-parallel"
            " size)",
        ),
        ("needs: {vllm: 1.10}", "needs.vllm: found `1.10`; a PEP 440 version range is wanted, e.g. `>=0.19,<0.34`"),
        ("image: ", "image: is missing (image reference that docker can pull; with a digest where it is known)"),
        ("image: a b", "image: found `a b`; an image reference is wanted: registry/name:tag or name@sha256:…"),
        (
            "model: ./here",
            "model: found `./here`; a hub id (google/gemma-4-31B-it) or an absolute path on the hosts is wanted",
        ),
        ("revision: -x", "revision: found `-x`; one word without blanks and without a dash in front is wanted"),
        (
            "vllm: {enforce-eager: yes}",
            "vllm.enforce-eager: found `yes`, which may mean text or a switch: write true or false, or use quotes",
        ),
        ("vllm: {enforce-eager: }", "vllm.enforce-eager: has no value; true gives the bare flag, false its --no- form"),
        (
            "vllm: {--max-num-seqs: 8}",
            "vllm: `--max-num-seqs` is no flag's name; it is written without dashes in front: max-model-len",
        ),
        ("vllm: {max_num_seqs: 8, max-num-seqs: 4}", "vllm.max-num-seqs: is there twice, with - and with _"),
        (
            "vllm: [a]",
            "vllm: found a list, wanted a mapping of names to values (flags of `vllm serve` by name without"
            " dashes in front; true gives the bare flag, false its --no- form, lists several words, mappings a JSON"
            " word; sizes, backend, host, port and names are given by cluster)",
        ),
        (
            "mounts: [{source: a}]",
            "mounts.0.target: is missing (absolute path in the container, or site-packages/… for"
            " where the image's Python has its packages)",
        ),
        (
            "mounts: [{source: a, target: b}]",
            "mounts.0.target: found `b`; an absolute path of a file in the container"
            " is wanted, or site-packages/…, without : and ,",
        ),
        ("mounts: [{source: a, target: /b}, {source: c, target: /b}]", "mounts: two files have the target `/b`"),
        (
            "expect_log: {require: ['(']}",
            "expect_log.require.0: found `(`, which is no regular expression: missing ),"
            " unterminated subpattern at position 0",
        ),
        (
            "before_serve: [true]",
            "before_serve.0: found `true`, wanted a list of text (commands (lists of"
            " words) run in each container before its rank starts)",
        ),
        (
            "reference: [{source: a, depth_mode: warm}]",
            "reference.0.depth_mode: found `warm`, wanted `cold` or"
            " `prefix-caching` (cold: one request of depth + pp tokens; prefix-caching: the context loaded first)",
        ),
        (
            "reference: [{source: a, depth_mode: cold, rows: [{test: decode}]}]",
            "reference.0.rows.0.test: found `decode`; a row name is wanted: tg128, pp2048 @ d4096, tg32 (c4)",
        ),
        (
            "env: {VLLM_API_KEY: abc}",
            "env.VLLM_API_KEY: looks like a secret, which no file here may hold; give it with -e VLLM_API_KEY",
        ),
        (
            "vllm: {api-key: sesame}",
            "vllm.api-key: looks like a secret, which no file here may hold; give it with -e VLLM_API_KEY",
        ),
        (
            "vllm: {hf-overrides: {text: {hf_token: sesame}}}",
            "vllm.hf-overrides.text.hf_token: looks like a secret,"
            " which no file here may hold; give it with -e HF_TOKEN",
        ),
        (
            "before_serve: [[login, hf_sesameaaaaaaaaaaaaaa]]",
            "before_serve: looks like a secret, which no file here may hold; give it with -e NAME",
        ),
    ],
)
def test_a_recipe(line: str, message: str) -> None:
    key = line.partition(":")[0]
    others = "".join(f"{row}\n" for row in RECIPE.splitlines() if row.partition(":")[0] != key)
    number = len(others.splitlines()) + 1
    assert error_of(Recipe, f"{others}{line}\n") == f"f.yaml:{number}: {message}"


def test_sensible_readings_are_accepted() -> None:
    recipe = validate(
        Recipe,
        parse_document(
            RECIPE
            + "revision: 1.10\nenv: {A: 1, B: on, C: 22:22, D: 1.10, TOKENIZERS_PARALLELISM: false, MAX_TOKENS: 5}\n"
            "vllm: {max_model_len: 4096, x.y_z: 1, flag: true, t: 22:22}\nport: '8001'\nbench: {runs: 5}\n"
            "memory: {per_host_gib: {1: 50, 2: 30.5}}\nsummary:\nneeds:\n",
            "f",
        ),
    )
    assert recipe.revision == "1.10"
    assert recipe.env == {
        "A": "1",
        "B": "on",
        "C": "22:22",
        "D": "1.10",
        "TOKENIZERS_PARALLELISM": "false",
        "MAX_TOKENS": "5",
    }
    assert recipe.vllm == {"max-model-len": 4096, "x.y_z": 1, "flag": True, "t": "22:22"}
    assert (recipe.port, recipe.bench.runs, recipe.summary) == (8001, 5, "")
    assert recipe.memory.per_host_gib == {1: 50.0, 2: 30.5}
    assert {type(value) for value in recipe.env.values()} == {str}


def test_unicode_names_and_ipv6_are_fine() -> None:
    text = "hosts:\n  spärk: {address: fe80::1%enP7s7}\n  火花: {address: '::1', port: 2222}\ngroups: {g: [火花]}\n"
    inventory = validate(Inventory, parse_document(text, "f"))
    assert list(inventory.hosts) == ["spärk", "火花"]
    assert inventory.hosts["火花"].port == 2222
    text = 'hosts: {"\\u00e4": {address: x}}\ngroups: {g: ["a\\u0308"]}\n'
    assert validate(Inventory, parse_document(text, "f")).groups == {"g": ["ä"]}


def test_many_problems_make_few_lines() -> None:
    hosts = "".join(f"  s{n}: {{prot: 1}}\n" for n in range(9))
    lines = error_of(Inventory, f"hosts:\n{hosts}").splitlines()
    assert lines[0].startswith("f.yaml:2: hosts.s0.address: is missing")
    assert lines[-1] == "… and 14 more"
    assert len(lines) == 5


@each("name, value", SECRET.items())
def test_no_file_holds_a_secret(name: str, value: str) -> None:
    written = json.dumps({name: value})
    defaults = f"hosts: {{}}\ndefaults: {{env: {written}}}\n"
    host = f"hosts: {{s: {{address: a, env: {written}}}}}\n"
    for model, text in ((Recipe, f"{RECIPE}env: {written}\n"), (Inventory, defaults), (Inventory, host)):
        message = error_of(model, text)
        assert f"env.{name}: looks like a secret" in message
        assert value not in message


@each("name, value", INNOCENT.items())
def test_a_file_holds_what_is_no_secret(name: str, value: str) -> None:
    text = f"{RECIPE}env: {json.dumps({name: value})}\n"
    assert validate(Recipe, parse_document(text, "f.yaml")).env == {name: value}


def test_no_message_shows_the_value_of_a_secret() -> None:
    assert "hunter2" not in error_of(Recipe, RECIPE + "env: {MY_PASSWORD: hunter2}\n")
    assert "hunter2" not in error_of(Recipe, RECIPE + "env: {MY_PASSWORD: [hunter2]}\n")
