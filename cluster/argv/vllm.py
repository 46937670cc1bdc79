"""A recipe and a layout as the words of `vllm serve`."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import JsonValue

from cluster.argv.ports import PORTS
from cluster.config import script
from cluster.config.recipe import Recipe
from cluster.config.secrets import API_KEY, secrets_in
from cluster.errors import UsageError

Backend = Literal["ray", "mp", "none"]

# Flags that cluster sets, and where the user sets the same.
OURS = {
    "tensor-parallel-size": "--tp",
    "pipeline-parallel-size": "--pp",
    "data-parallel-size": "--tp and --pp (one GPU a host, so hosts = tp × pp)",
    "distributed-executor-backend": "--backend",
    **dict.fromkeys(("nnodes", "node-rank", "headless", "master-addr", "master-port"), "-n/--nodes"),
    "model": "the recipe's key `model`",
    "revision": "the recipe's key `revision`",
    "served-model-name": "the recipe's key `served_model_name`",
    "port": "the recipe's key `port`",
    "host": "--bind",
    "api-key": f"-e {API_KEY}=…, which stays out of command lines",
}
_NOT_ASKED = (
    "cluster proves and measures a server by HTTP on a TCP port, so this one would never be ready",
    "remove it; for TLS put a proxy in front of the server",
)
REFUSED = {
    **dict.fromkeys(("ssl-certfile", "ssl-keyfile", "ssl-ca-certs", "uds", "grpc"), _NOT_ASKED),
    "config": ("the flags in that file would be seen by no check", "write them into the recipe, under `vllm`"),
}
"""Flags that cannot be given, with why and what to do: of servers that speak TLS, listen on a Unix socket only or speak
no HTTP, and a file of flags."""
SHORT = {f"{kind[0]}p": f"{kind}-parallel-size" for kind in ("tensor", "pipeline", "data")}
SHORT |= {"n": "nnodes", "r": "node-rank"}
MEASURING_FLAGS = ("--enable-per-request-metrics", "--enable-prompt-tokens-details")
MEASURING_SINCE = (0, 32)
AFTER = "command line, after --"
AUTO = -1
"""A length that vLLM chooses itself: the longest that the model allows and that fits the cache."""
THOUSANDS = {letter: 1000**power for power, letter in enumerate("kmgt", 1)}
BINARY = {letter: 1024**power for power, letter in enumerate("KMGT", 1)}


@dataclass(frozen=True, slots=True)
class Layout:
    """How one model is spread over hosts, one GPU each. `addresses` is by rank; `none` is one rank alone."""

    tp: int
    pp: int
    backend: Backend
    addresses: tuple[str, ...]
    bind: str = "0.0.0.0"


def vllm_serve(
    recipe: Recipe,
    layout: Layout,
    *,
    rank: int = 0,
    revision: str = "",
    measuring: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> tuple[str, ...]:
    """The words of one rank's `vllm serve`; on the ray backend only rank 0 has them.

    `revision` replaces the recipe's (a commit found on the hosts). `measuring` are flags that cluster adds for itself,
    `extra` the user's words after `--`, as they are.
    Raises UsageError when a flag of the recipe or an extra word is one that cluster sets, or a number that vLLM
    refuses.
    """
    ours = _layout_flags(recipe, layout, rank)
    refuse_extra(extra)
    check_values(recipe.vllm, "vllm.", f"recipe {recipe.name}")
    check_values(serve_flags({}, extra), "--", AFTER)
    words = ["vllm", "serve", recipe.model]
    if not recipe.model.startswith("/"):
        words += ["--revision", revision or recipe.revision]
    for flag, value in (*ours.items(), *_recipe_flags(recipe, ours).items()):
        words += flag_words(flag, value)
    return (*words, *(() if "headless" in ours else measuring), *extra)


def measuring_flags(vllm_version: str) -> tuple[str, ...]:
    """Flags that cluster adds so that a measurement can read what the server did, where vLLM knows them."""
    numbers = re.match(r"(\d+)\.(\d+)", vllm_version)
    known = numbers is not None and (int(numbers[1]), int(numbers[2])) >= MEASURING_SINCE
    return MEASURING_FLAGS if known else ()


def _layout_flags(recipe: Recipe, layout: Layout, rank: int) -> dict[str, JsonValue]:
    """Flags that follow from the layout. A headless rank has no HTTP, so no address of its own."""
    size = len(layout.addresses)
    flags: dict[str, JsonValue] = {"served-model-name": recipe.served_model_name or recipe.model}
    flags |= {"host": layout.bind, "port": recipe.port} if rank == 0 else {}
    flags |= {"tensor-parallel-size": layout.tp, "pipeline-parallel-size": layout.pp}
    if layout.backend != "none":
        flags["distributed-executor-backend"] = layout.backend
    if layout.backend == "mp" and size > 1:
        flags |= {"nnodes": size, "node-rank": rank}
        flags |= {"master-addr": layout.addresses[0], "master-port": PORTS.mp_master}
        flags |= {"headless": True} if rank > 0 else {}
    return flags


def _recipe_flags(recipe: Recipe, ours: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The recipe's flags; those that repeat ours are left out."""
    flags = {settled(key): value for key, value in recipe.vllm.items()}
    for key, value in recipe.vllm.items():
        flag = settled(key)
        if flag in REFUSED and value is not False:
            raise _refused(flag, f"the recipe's key vllm.{key}", f"recipe {recipe.name}")
        if flag in OURS and str(value) != str(ours.get(flag)):
            shown, own = "set" if flag == "api-key" else json.dumps(value), ours.get(flag)
            given = "which cluster sets itself" if own is None else f"but here it is {json.dumps(own)}"
            what, remedy = f"the recipe's key vllm.{key} is {shown}, {given}", f"remove the key and use {OURS[flag]}"
            raise UsageError(what, code="flag-managed", where=f"recipe {recipe.name}", remedy=remedy)
    return {flag: value for flag, value in flags.items() if flag not in OURS and flag not in REFUSED}


def settled(name: str) -> str:
    """The flag of OURS or REFUSED that vLLM takes a name for (argparse accepts any unambiguous beginning), else the
    name."""
    return SHORT.get(name) or next((flag for flag in (*OURS, *REFUSED) if flag.startswith(name)), name)


def _refused(flag: str, what: str, where: str) -> UsageError:
    why, remedy = REFUSED[flag]
    return UsageError(f"{what}: {why}", code="flag-not-supported", where=where, remedy=remedy)


def flag_words(flag: str, value: JsonValue) -> list[str]:
    """One flag as words: true bare, false `--no-…`, a list several words, a mapping one JSON word.

    A word that begins with a dash is joined with `=`, or the parser would take it for a flag.
    Raises UsageError for an empty list, which no flag of vLLM takes.
    """
    if value is True:
        return [f"--{flag}"]
    if value is False:
        return [f"--no-{flag}"]
    if isinstance(value, list):
        if not value:
            remedy = "give it a value, or remove the key"
            raise UsageError(f"vllm.{flag} is an empty list", code="empty-value", remedy=remedy)
        return [f"--{flag}", *map(_word, value)]
    word = _word(value)
    return [f"--{flag}={word}"] if word.startswith("-") else [f"--{flag}", word]


def _word(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def serve_flags(recipe: Mapping[str, Any], words: Sequence[str] = ()) -> dict[str, Any]:
    """What `vllm serve` is given, by flag: the recipe's, then the user's words after `--`; the last value counts.
    Dotted names and JSON objects are one: `--speculative-config.model x`, `--speculative-config '{"model": "x"}'`."""
    flags: dict[str, Any] = {}
    for name, value in (*recipe.items(), *_flags_of(words)):
        key, *path = name.split(".")
        if isinstance(value, str) and value.startswith("{"):
            with suppress(ValueError):
                value = json.loads(value)
        for part in reversed(path):
            value = {part: value}
        known = flags.get(key)
        flags[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return flags


def _flags_of(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Flags among words of a command line: `--key value`, `--key=value`, `--key`, `--no-key`, `-sc value`."""
    for given, values in script.flags(words):
        first, dot, rest = given.partition(".")
        name = first.replace("_", "-") + dot + rest
        if name.startswith("no-"):
            yield name.removeprefix("no-"), False
        elif name:
            yield name, values[0] if values else True


def drafting_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The speculative-config among flags of `serve_flags`, with what the spec-* flags give; empty without drafting."""
    found = flags.get("speculative-config")
    named = {"model": "spec-model", "method": "spec-method", "num_speculative_tokens": "spec-tokens"}
    more = {key: flags[flag] for key, flag in named.items() if flag in flags}
    return {**(found if isinstance(found, dict) else {}), **more}


def drafter_of(drafting: Mapping[str, Any]) -> tuple[str, str] | None:
    """Model and revision of a drafter with files of its own; n-grams and heads within the model have none."""
    named = drafting.get("model")
    has_files = isinstance(named, str) and "/" in named
    return (str(named), str(drafting.get("revision") or "main")) if has_files else None


def weights_of(weights: str, flags: Mapping[str, Any]) -> str:
    """`real` or `dummy`: what a recipe says of its weights, or vLLM makes of them (`load-format: dummy`)."""
    return "dummy" if flags.get("load-format") == "dummy" else weights


def read_length(value: JsonValue) -> int:
    """Tokens as vLLM reads `--max-model-len`: a count, `auto` and -1 are AUTO. Raises ValueError as `read_count`."""
    text = _word(value).strip()
    return AUTO if text == "-1" or text.lower() == "auto" else read_count("max-model-len", value, "tokens", ", or auto")


def read_count(flag: str, value: JsonValue, unit: str = "a number", more: str = "") -> int:
    """A number as vLLM reads one: `128k` is 128,000, `128K` is 131,072. Raises ValueError for what it refuses: a part
    of a binary unit (`25.6K`), words, nothing, less than 1."""
    text = _word(value).strip()
    short = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kmgtKMGT])", text)
    number, letter = short.groups() if short else (text, "")
    try:
        count = int(float(number) * THOUSANDS[letter]) if letter in THOUSANDS else int(number) * BINARY.get(letter, 1)
    except ValueError:
        count = 0
    if count < 1:
        raise ValueError(f"{flag}: found {value!r}; expected {unit}, as 65536, 128k, 128K{more}")
    return count


def read_share(value: JsonValue) -> float:
    """vLLM's share of the memory. Raises ValueError for what is none."""
    with suppress(ValueError):
        if 0 < (share := float(_word(value))) <= 1:
            return share
    raise ValueError(f"gpu-memory-utilization: found {value!r}; expected a number above 0 and at most 1")


NUMBERS: dict[str, Callable[[JsonValue], float]] = {
    "max-model-len": read_length,
    "gpu-memory-utilization": read_share,
    **{flag: partial(read_count, flag) for flag in ("max-num-seqs", "max-num-batched-tokens")},
}
"""Flags whose value is read before any host is asked: vLLM would end over it, minutes later."""


def _read_json(flag: str, text: str) -> None:
    try:
        json.loads(text)
    except ValueError as error:
        raise ValueError(f"{flag}: found {text!r}; expected a JSON object ({error})") from None


def check_values(flags: Mapping[str, JsonValue], prefix: str, where: str) -> None:
    """Raise UsageError for a value of NUMBERS that vLLM refuses, and for a JSON object that cannot be read."""
    for flag, value in flags.items():
        name = flag.replace("_", "-")
        try:
            NUMBERS.get(name, _word)(value)
            if isinstance(value, str) and value.startswith("{") and name.endswith(("-config", "-overrides", "-kwargs")):
                _read_json(name, value)
        except ValueError as error:
            raise UsageError(f"{prefix}{error}", code="value-invalid", where=where) from None


def check_bind(address: str) -> str:
    """The address that the API listens on: IPv4, IPv6 or a name. Raises UsageError."""
    with suppress(ValueError):
        if re.fullmatch(r"(?!-)[\w.-]*[A-Za-z][\w-]*\.?", address, re.ASCII) or ipaddress.ip_address(address):
            return address
    remedy = "an IPv4 or IPv6 address of the head, or a name: 127.0.0.1, ::1, localhost; 0.0.0.0 is all"
    raise UsageError(f"--bind {address}: not an address", code="address-invalid", remedy=remedy)


def refuse_extra(extra: Sequence[str]) -> None:
    """Raise UsageError when one of the user's words after `--` is a flag that cluster sets, is a secret, or stands
    before all flags.
    argparse accepts any unambiguous beginning of a flag, so beginnings are refused too."""
    for word in extra:
        given = word.partition("=")[0]
        name = given.replace("_", "-")
        flag = SHORT.get(name[1:], SHORT.get(name[1:2])) if re.match("-[^-]", name) else None  # `-n2` is `-n 2`
        if name.startswith("--") and len(name) > 2:
            flag = settled(name[2:])
        if flag in REFUSED:
            raise _refused(flag, f"{given} after --", AFTER)
        if flag in OURS:
            what = f"{given} after -- is set by cluster"
            raise UsageError(what, code="flag-managed", where=AFTER, remedy=f"use {OURS[flag]}")
    for name in (*secrets_in(serve_flags({}, extra)), *secrets_in(extra)):
        what = f"{f'--{name}' if name else 'a word'} after -- looks like a secret, and everybody can read command lines"
        remedy = "give it with -e NAME=VALUE, which stays out of command lines"
        raise UsageError(what, code="secret-in-words", where=AFTER, remedy=remedy)
    for word in next(iter(script.flags(extra)))[1]:
        what = f"`{word}` after -- belongs to no flag: vLLM would take it for a second model"
        raise UsageError(what, code="word-not-expected", where=AFTER, remedy="give flags of vLLM: -- --FLAG VALUE")
