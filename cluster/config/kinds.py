"""Kinds of text and lists that a recipe holds, each with its check."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from cluster.config.strict import Count, wrong_at
from cluster.config.written import resolve

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_MODEL = re.compile(r"/\S+|[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
PACKAGES = "site-packages/"
"""How a mount's target begins that lies where the image's Python has its packages, whatever that folder is called."""
_ROW = re.compile(r"(pp[0-9]+|tg[0-9]+|ctx_pp|ctx_tg)( @ d[0-9]+)?( \(c[0-9]+\))?")


def _check_name(text: str) -> str:
    if text and not _NAME.fullmatch(text):
        raise ValueError(f"found `{text}`; letters, digits, `.`, `_` and `-` are allowed, the first a letter or digit")
    return text


def _check_image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise ValueError(f"found `{text}`; an image reference is wanted: registry/name:tag or name@sha256:…")
    return text


def _check_model(text: str) -> str:
    if not _MODEL.fullmatch(text):
        raise ValueError(f"found `{text}`; a hub id (google/gemma-4-31B-it) or an absolute path on the hosts is wanted")
    return text


def _check_specifier(text: str) -> str:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"found `{text}`; a PEP 440 version range is wanted, e.g. `>=0.19,<0.34`") from None
    return text


def _check_target(text: str) -> str:
    rooted = text.startswith(("/", PACKAGES))
    if not rooted or text.endswith("/") or ".." in text.split("/") or ":" in text or "," in text:
        raise ValueError(
            f"found `{text}`; an absolute path of a file in the container is wanted, or {PACKAGES}…, without : and ,"
        )
    return text


def _check_model_file(text: str) -> str:
    if text.startswith("/") or text.endswith("/") or ".." in text.split("/"):
        raise ValueError(f"found `{text}`; the path of a file in the model's own repository is wanted")
    return text


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"found `{text}`, which is no regular expression: {error}") from None
    return text


def _check_extends(text: str) -> str:
    if text:  # a file's own is resolved before it is validated, so this one is from --set
        raise ValueError("can be written in a recipe file only")
    return text


def _check_row(text: str) -> str:
    if not _ROW.fullmatch(text):
        raise ValueError(f"found `{text}`; a row name is wanted: tg128, pp2048 @ d4096, tg32 (c4)")
    return text


def name_flags(data: Any) -> Any:
    """vLLM flags with names in one form (`max-model-len`), values as YAML 1.2 reads them. Raises ValueError."""
    if not isinstance(data, dict):
        return data
    flags: dict[str, Any] = {}
    for written, value in data.items():
        name = flag_name(str(written))
        if name in flags:
            raise wrong_at(written, "is there twice, with - and with _")
        if value is None:
            raise wrong_at(written, "has no value; true gives the bare flag, false its --no- form")
        try:
            flags[name] = resolve(value)
        except ValueError as error:
            raise wrong_at(written, str(error)) from None
    return flags


def flag_name(written: str) -> str:
    """`max_model_len` and `max-model-len` are one flag to vLLM; the second form is kept. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", written):
        raise ValueError(f"`{written}` is no flag's name; it is written without dashes in front: max-model-len")
    head, dot, tail = written.partition(".")
    return head.replace("_", "-") + dot + tail


Name = Annotated[str, AfterValidator(_check_name)]
Image = Annotated[str, AfterValidator(_check_image)]
ModelId = Annotated[str, AfterValidator(_check_model)]
ModelFile = Annotated[str, AfterValidator(_check_model_file)]
Target = Annotated[str, AfterValidator(_check_target)]
Row = Annotated[str, AfterValidator(_check_row)]
Parent = Annotated[str, AfterValidator(_check_extends)]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
Specifier = Annotated[str, AfterValidator(_check_specifier)]
Flags = Annotated[dict[str, JsonValue], BeforeValidator(name_flags)]
Counts = Annotated[list[Count], Field(min_length=1)]
Depths = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Command = Annotated[list[str], Field(min_length=1)]
Gib = Annotated[float, Field(gt=0)]
