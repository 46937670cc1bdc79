"""Secrets: read from files; taken out of what is shown, kept or sent, by value where known, else by name or form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cluster.config.find import expand
from cluster.errors import UsageError

API_KEY = "VLLM_API_KEY"  # The variable in which vLLM expects the API key that clients must send
HIDDEN = "(hidden)"
SHORTEST = 4  # Characters from which on a known value is looked for: shorter ones are everywhere

_WIDTHS = {"hf_": 3, "sk-": 3, "gh[opsru]_": 4, "github_pat_": 11, "glpat-": 6, "nvapi-": 6, "xox[abprs]-": 5}
_FORMS = tuple(
    re.compile(form, re.DOTALL)
    for form in (
        r"()(-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))",
        *(rf"()({word}(?<!\w{'.' * width})[\w-]{{16,}})" for word, width in _WIDTHS.items()),
        r"()(AKIA(?<!\w....)[0-9A-Z]{16}\b)",
        r"()(eyJ(?<!\w...)[\w-]{8,}\.[\w-]{8,}\.[\w-]*)",  # a JSON web token
        r"(://)([^\s/:@'\"]{0,64}:(?!\d{1,5}/)[^\s@'\"]{1,256})(?=@)",  # user:password in a URL
        r"(earer )([\w.~+/=-]{8,})",
        r"(uthorization: [Bb]asic )([\w.~+/=-]{8,})",
    )
)
"""What is a secret by its form, as group 2. Each begins with letters, so that the search of a long log is quick."""
_NAMED = re.compile(
    r"""(?:(?<![\w.-])|(?<=^-e)|(?<=[\s'"]-e))(?P<name>(?P<flag>--)?(?=[\w.-]*(?i:key|token|secret|pass|pwd|pat|cred|bearer|jwt))[A-Za-z_][\w.-]*)"""
    r"""\\?['"]?(?:\s*[=:]\s*\[?b?|(?(flag),?\s+|(?!)))"""
)
_VALUE = re.compile(
    r"""(?P<escaped>\\)?(?P<quote>['"])?"""
    r"""(?P<value>(?(escaped)[^'"\\\n]+|(?(quote)(?:\\.|(?!(?P=quote))[^\\\n])+|[^\s'",;(){}\[\]][^\s'",;)}\]]*)))"""
)
"""`NAME=value`, `"name": "value"` (also where the quotes are escaped), `--flag value`, `'--flag', 'value'`."""
_STRONG = re.compile(r".*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL)S?|PASS|PWD|CREDS?|APIKEYS?")
"""Parts of a name that are secret also where their value is a number of more than three digits, as PINs are."""
_WEAK = re.compile(r".*TOKENS?|(?:ACCESS|PRIVATE|AUTH|SIGNING|ENCRYPTION|MASTER)?KEYS?|PAT|BEARER|JWT")
_ABOUT = re.compile(
    r"(?:PATH|FILE|NAME)S?|FILENAME|DIR|DIRECTORY|MODE|TYPE|LAYOUT|FORMAT|ALGORITHM|URL|URI|HOST|PORT|PARSER|ERROR|LIMIT"
    r"|LENGTH|SIZE|COUNT|TTL|TIMEOUT"
)
"""Last parts of names of what only belongs to a secret: `HF_TOKEN_PATH`, `RAY_AUTH_MODE`."""
_COUNTED = re.compile(r"MAX|MIN|NUM|N|TOTAL|BATCHED|PROMPT|COMPLETION|INPUT|OUTPUT|NEW|CACHED|DRAFT|SPECULATIVE")
"""Parts beside `TOKENS` that make them a number of words."""
_OPEN = re.compile(r"(?:PAD|[EB]OS|UNK|CLS|SEP|MASK|STOP|IMAGE|AUDIO|VIDEO|PER)_TOKENS?|(?:PUBLIC|CACHE|SORT)_KEYS?")
"""Two parts that together are no secret."""
_WORD = re.compile(r"-?[0-9.]{1,3}|true|false|yes|no|on|off|none|null", re.IGNORECASE)
_FIGURE = re.compile(r"-?[0-9.]{1,9}")
_PLACE = re.compile(r"(?:~/|/(?:Users|[a-z][a-z0-9_.-]*)(?:/|$))[\w./@+-]*")
"""A path: base64 may begin with a slash, but has capitals soon."""


def read_secret(path: str, option: str) -> str:
    """The one line of a file that holds a key or token. Raises UsageError when it cannot be read, or holds another
    number of lines."""
    try:
        text = expand(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
    except ValueError:
        why = "not UTF-8 text"
    else:
        if len(text.splitlines()) == 1:
            return text
        why = "expected one line, found several" if text else "the file is empty"
    raise UsageError(f"{option} {path}: {why}", code="file-unreadable")


def hide(data: bytes, secrets: Iterable[str]) -> bytes:
    """Known values, and what has the form of a secret, replaced by as many stars, so that a tar keeps its lengths."""
    data = _hide_known(data, secrets)
    text = data.decode("latin-1")
    for form in _FORMS:
        text = form.sub(lambda found: found[1] + "*" * len(found[2]), text)
    return text.encode("latin-1")


def _hide_known(data: bytes, secrets: Iterable[str]) -> bytes:
    """Each value as it is and as JSON writes it; longer ones first, since one may be part of another."""
    long_enough = {secret for secret in secrets if len(secret) >= SHORTEST}
    forms = long_enough | {json.dumps(secret)[1:-1] for secret in long_enough}
    for secret in sorted(forms, key=len, reverse=True):
        data = data.replace(secret.encode(), b"*" * len(secret.encode()))
    return data


def hide_text(text: str, secrets: Iterable[str]) -> str:
    return hide(text.encode("utf-8", "surrogateescape"), secrets).decode("utf-8", "surrogateescape")


def redact_text(text: str, secrets: Iterable[str]) -> str:
    """Text without known values, without what has the form of a secret, and without what is given to a secret's name.

    More is hidden than need be; a word that is no secret is the smaller loss.
    """
    known = _hide_known(text.encode("utf-8", "surrogateescape"), secrets).decode("utf-8", "surrogateescape")
    for form in _FORMS:
        known = form.sub(rf"\1{HIDDEN}", known)
    kept, at = [], 0
    while named := _NAMED.search(known, at):
        value = _VALUE.match(known, named.end())
        secret = value is not None and is_secret(named["name"], value["value"])
        kept += [known[at : value.start("value")], HIDDEN] if value and secret else [known[at : named.end()]]
        at = value.end() if value and secret else named.end()
    return "".join([*kept, known[at:]])


def redact(value: Any, secrets: Iterable[str], name: str = "") -> Any:
    """Mappings, sequences and texts, as JSON has them, without secrets; `name` is the key of `value`."""
    secrets = tuple(secrets)
    if isinstance(value, Mapping):
        return {redact_text(str(key), secrets): redact(inner, secrets, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        flags = ["", *(item if isinstance(item, str) and item.startswith("--") else "" for item in value)]
        return [redact(item, secrets, flag) for item, flag in zip(value, flags, strict=False)]
    if isinstance(value, str):
        return HIDDEN if _is_named(name, value) else redact_text(value, secrets)
    return value


def secrets_in(value: Any, name: str = "") -> Iterator[str]:
    """The keys of secrets in mappings, sequences and texts, as JSON has them; dotted where nested."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from secrets_in(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from secrets_in(inner, name)
    elif isinstance(value, str) and is_secret(name.rpartition(".")[2], value):
        yield name


def is_secret(name: str, value: str) -> bool:
    """Whether what a name is given must not be seen: `HF_TOKEN` and `--api-key`, not `max_tokens: 512` or `key: x`.

    The one answer to this question: for variables, files of users, command lines and whatever is shown or kept.
    """
    return any(form.search(value) for form in _FORMS) or _is_named(name, value)


def _is_named(name: str, value: str) -> bool:
    """Whether the name marks a secret, and the value may be one."""
    if not value or value == HIDDEN or _WORD.fullmatch(value) or _PLACE.fullmatch(value):
        return False
    parts = [part.rstrip("0123456789") for part in re.split(r"[^A-Z0-9]+", name.upper()) if part]
    kinds = {_kind(parts, at, name) for at in range(len(parts))} if parts and not _ABOUT.fullmatch(parts[-1]) else set()
    return "strong" in kinds or ("weak" in kinds and not _FIGURE.fullmatch(value))


def _kind(parts: Sequence[str], at: int, name: str) -> str:
    """What one part makes of a name: `strong`, `weak` (a number is no secret), or nothing."""
    part, before, after = parts[at], parts[at - 1] if at else "", parts[at + 1] if at + 1 < len(parts) else ""
    if part in ("KEY", "KEYS", "PASS") and not at and (after or name != name.upper()):
        return ""  # first, it qualifies what follows: KEY_VALUE_HEADS; `key: x` is any text
    if _STRONG.fullmatch(part) or (part == "KEY" and before == "API"):
        return "strong"
    if not _WEAK.fullmatch(part) or _OPEN.fullmatch(f"{before}_{part}") or after.startswith("VALUE"):
        return ""
    return "" if part.endswith("TOKENS") and any(map(_COUNTED.fullmatch, parts)) else "weak"
