"""Secrets taken out of what is shown, kept or sent: by their value where it is known, else by their name or form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "(hidden)"
SHORTEST = 4
"""Characters from which on a known value is looked for: shorter ones are everywhere."""

_FORMS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:hf_|sk-|gh[opsru]_|github_pat_|glpat-|nvapi-|xox[abprs]-)[A-Za-z0-9_-]{16,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # a JSON web token
    r"|(?<=://)[^\s/:@'\"]{0,64}:[^\s@'\"]{1,256}(?=@)"  # user:password in a URL
    r"|(?i:(?<=bearer )|(?<=authorization: basic ))[\w.~+/=-]{8,}",
    re.DOTALL,
)
_NAMED = re.compile(
    r"""(?<![\w.-])(?P<name>(?P<flag>--)?(?=[\w.-]*(?i:key|token|secret|passw|passphrase|credential))[A-Za-z_][\w.-]*)"""
    r"""\\?['"]?(?:\s*[=:]\s*\[?b?|(?(flag),?\s+|(?!)))"""
)
_VALUE = re.compile(
    r"""(?P<escaped>\\)?(?P<quote>['"])?"""
    r"""(?P<value>(?(escaped)[^'"\\\n]+|(?(quote)(?:\\.|(?!(?P=quote))[^\\\n])+|[^\s'",;(){}\[\]][^\s'",;)}\]]*)))"""
)
"""`NAME=value`, `"name": "value"` (also where the quotes are escaped), `--flag value`, `'--flag', 'value'`."""
_ALWAYS = re.compile(r"secret|passw|passphrase|credential", re.IGNORECASE)
_PART = re.compile(r"(?:api|access|private|auth)?(?:key|token)s?", re.IGNORECASE)
_FIGURE = re.compile(r"-?[0-9.]{1,9}|true|false|none|null", re.IGNORECASE)


def hide(data: bytes, secrets: Iterable[str]) -> bytes:
    """Known values replaced by as many stars, so that a tar keeps its lengths."""
    for secret in _forms_of(secrets):
        data = data.replace(secret.encode(), b"*" * len(secret.encode()))
    return data


def hide_text(text: str, secrets: Iterable[str]) -> str:
    """The same for text."""
    return hide(text.encode("utf-8", "surrogateescape"), secrets).decode("utf-8", "surrogateescape")


def redact_text(text: str, secrets: Iterable[str]) -> str:
    """Text without known values, without what has the form of a secret, and without what is given to a secret's name.

    More is hidden than need be; a word that is no secret is the smaller loss.
    """
    return "".join(_without_named(_FORMS.sub(HIDDEN, hide_text(text, secrets))))


def _without_named(text: str) -> Iterator[str]:
    """The text in pieces, without what is given to the name of a secret."""
    at = 0
    while named := _NAMED.search(text, at):
        value = _VALUE.match(text, named.end())
        secret = value is not None and is_secret(named["name"], value["value"])
        yield text[at : value.start("value") if value and secret else named.end()]
        if value and secret:
            yield HIDDEN
        at = value.end() if value and secret else named.end()
    yield text[at:]


def redact(value: Any, secrets: Iterable[str], name: str = "") -> Any:
    """Mappings, sequences and texts, as JSON has them, without secrets; `name` is the key that `value` stands under."""
    secrets = tuple(secrets)
    if isinstance(value, Mapping):
        return {redact_text(str(key), secrets): redact(inner, secrets, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        flags = ["", *(item if isinstance(item, str) and item.startswith("--") else "" for item in value)]
        return [redact(item, secrets, flag) for item, flag in zip(value, flags, strict=False)]
    if isinstance(value, str):
        return HIDDEN if is_secret(name, value) else redact_text(value, secrets)
    return value


def is_secret(name: str, value: str) -> bool:
    """Whether what a name is given must not be seen: `HF_TOKEN` and `--api-key`, not `max_tokens: 512` or `key: x`."""
    if not value or value == HIDDEN:
        return False
    if _ALWAYS.search(name):
        return True
    parts = [part for part in re.split(r"[_.-]", name) if part]
    named = any(_PART.fullmatch(part) for part in parts) and parts[0].lower() not in ("key", "keys")
    return named and not _FIGURE.fullmatch(value)


def _forms_of(secrets: Iterable[str]) -> list[str]:
    """Each value as it is and as JSON writes it; longer ones first, since one may be part of another."""
    long_enough = {secret for secret in secrets if len(secret) >= SHORTEST}
    return sorted(long_enough | {json.dumps(secret)[1:-1] for secret in long_enough}, key=len, reverse=True)
