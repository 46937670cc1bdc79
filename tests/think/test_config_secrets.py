"""What is taken out, what stays, and that hostile text costs no time."""

from __future__ import annotations

import time

import pytest
from loops import each
from secret_cases import INNOCENT, SECRET

from cluster.config.secrets import HIDDEN, hide, hide_text, is_secret, redact, redact_text, secrets_in

GIVEN = [
    ("HF_TOKEN=abc x", "HF_TOKEN=(hidden) x"),
    ("HF_TOKEN: abc", "HF_TOKEN: (hidden)"),
    ("{'HF_TOKEN': 'a b', 'max_tokens': 512}", "{'HF_TOKEN': '(hidden)', 'max_tokens': 512}"),
    ('"password": "a\\"b c", "n": 1', '"password": "(hidden)", "n": 1'),
    ('"env": "{\\"API_KEY\\":\\"a b\\",\\"n\\":3}"', '"env": "{\\"API_KEY\\":\\"(hidden)\\",\\"n\\":3}"'),
    ("vllm serve x --api-key abc --port 8000", "vllm serve x --api-key (hidden) --port 8000"),
    ("['--api-key', 'abc', '--port']", "['--api-key', '(hidden)', '--port']"),
    ("--api-key=abc", "--api-key=(hidden)"),
    ("'api_key': ['abc1', 'x']", "'api_key': ['(hidden)', 'x']"),
    ("AWS_SECRET_ACCESS_KEY=a/b+c==", "AWS_SECRET_ACCESS_KEY=(hidden)"),
    ("DB_PASSWORD=12345", "DB_PASSWORD=(hidden)"),
]
FORMS = [
    ("cannot log in with hf_abcdefghijklmnopqr", "cannot log in with (hidden)"),
    ("used sk-proj-0123456789abcdef.", "used (hidden)."),
    ("http_proxy is http://ada:p/w@proxy:3128/", "http_proxy is http://(hidden)@proxy:3128/"),
    ("Authorization: Bearer abc.def-123", "Authorization: Bearer (hidden)"),
    ("Authorization: Basic YWRhOnB3", "Authorization: Basic (hidden)"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc", "jwt (hidden)"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n-----END OPENSSH PRIVATE KEY-----\nafter", "(hidden)\nafter"),
    ("-----BEGIN RSA PRIVATE KEY-----\nb3Bl", "(hidden)"),
]
STAYS = [
    "KeyError: 'model.layers.0.weight'",
    "TypeError: got an unexpected key: 'x'",
    "num_key_value_heads=8, max_num_batched_tokens=8192, api_key=None",
    "tokenizer='google/gemma-4', tokenizer_mode=auto, skip_tokenizer_init=False",
    "GPU KV cache size: 41,216 tokens",
    "Maximum concurrency for 4,096 tokens per request: 10.06x",
    "pulled ghcr.io:443/a/b@sha256:0123456789abcdef",
    "http://192.168.1.41:8000/v1/models",
    "NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [RO]",
    "PASSWORD=''",
]


@each("text, redacted", [*GIVEN, *FORMS])
def test_it_is_hidden(text: str, redacted: str) -> None:
    assert redact_text(text, ()) == redacted
    assert redact_text(redacted, ()) == redacted


@each("text", STAYS)
def test_it_stays(text: str) -> None:
    assert redact_text(text, ()) == text


@each("name, value", SECRET.items())
def test_a_secret(name: str, value: str) -> None:
    assert is_secret(name, value)
    assert value not in redact_text(f"-e {name}={value} -e{name}={value}", ())
    assert value not in str(redact({name: value}, ()))
    assert list(secrets_in({"a": [{name: value}]})) == [f"a.{name}"]


@each("name, value", INNOCENT.items())
def test_no_secret(name: str, value: str) -> None:
    assert not is_secret(name, value)
    assert redact_text(f"-e {name}={value}", ()) == f"-e {name}={value}"
    assert redact({name: value}, ()) == {name: value}
    assert list(secrets_in({"a": [{name: value}]})) == []


@each("text", [text for text, _ in FORMS])
def test_forms_are_hidden_in_bytes(text: str) -> None:
    """As many stars, whatever stands around it."""
    data = b"\xff\x00 " + text.encode()
    hidden = hide(data, ())
    assert hidden != data
    assert len(hidden) == len(data)
    assert hidden[:3] == data[:3]


def test_known_values_keep_their_length() -> None:
    assert hide(b"\xff say abcd and abcdef", ("abcd", "abcdef", "y", "")) == b"\xff say **** and ******"
    assert hide_text('{"x": "a\\"bc"}', ('a"bc',)) == '{"x": "*****"}'
    assert hide_text("\udcff é abcé", ("abcé",)) == "\udcff é *****"


def test_trees() -> None:
    tree = {
        "env": {"HF_TOKEN": "abc", "PORT": "8000", "n_tokens": 7, "KEYS": ["a", "b"], "secrets": ["HF_TOKEN"]},
        "argv": ["serve", "--api-key", "abc", "--port", "8000"],
        "said": ("the word is open", None, 1.5),
    }
    assert redact(tree, ("open",)) == {
        "env": {"HF_TOKEN": HIDDEN, "PORT": "8000", "n_tokens": 7, "KEYS": ["a", "b"], "secrets": ["HF_TOKEN"]},
        "argv": ["serve", "--api-key", HIDDEN, "--port", "8000"],
        "said": ["the word is ****", None, 1.5],
    }


@pytest.mark.parametrize(
    "text",
    [
        "a" * 10**6,
        "--a " * 10**5,
        "key = " * 10**4,
        " " * 10**6,
        "token='" * 10**5,
        "--key" + " \n" * 10**5,
        "token=" * 10**5,
        "-----BEGIN PRIVATE KEY-----" * 10**3,
        "eyJ" * 10**5,
        "://" * 10**4,
        "bearer " * 10**5,
        "://a:" * 10**4,
    ],
    ids=lambda text: text[:12],
)
def test_hostile_text_costs_no_time(text: str) -> None:
    began = time.process_time()
    redact_text(text, ("abcd",))
    assert time.process_time() - began < 5
