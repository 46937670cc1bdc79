"""What a stored measurement must hold: a file that somebody edited is refused by its key, before it is counted with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import orjson
from pydantic import BaseModel, TypeAdapter, model_validator

Numbers = dict[str, float | list[float] | None]


class State(BaseModel, extra="allow"):
    """What one host reported at a moment of a run (`sampling.describe`)."""

    role: str = ""
    throttle: list[str] = []
    __pydantic_extra__: dict[str, float | None]


class Looks(BaseModel, extra="allow"):
    """All readings of one host during a run: seconds, and each quantity at them."""

    t: list[float]
    __pydantic_extra__: dict[str, list[float | None]]

    @model_validator(mode="after")
    def _check_lengths(self) -> Looks:
        for key, column in self.__pydantic_extra__.items():
            if len(column) != len(self.t):
                raise ValueError(f"{key} has {len(column)} readings, t has {len(self.t)}")
        return self


class Run(BaseModel):
    """What the hosts reported during a run."""

    before: dict[str, State] = {}
    after: dict[str, State] = {}
    least: dict[str, State] = {}
    most: dict[str, State] = {}
    series: dict[str, Looks] = {}


class Details(BaseModel):
    """What a row holds in mappings."""

    machine: list[Run] = []
    server: Numbers | None = None
    replicas: dict[str, Numbers | None] | None = None


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check_values(kind: Any, document: Mapping[str, Any]) -> None:
    """Raises ValidationError where a JSON object does not hold what the fields of `kind` are to hold."""
    _reader(kind).validate_json(orjson.dumps(document), strict=True)


def check_version(document: Mapping[str, Any], key: str, latest: int) -> None:
    """Raises ValueError when the number of a stored form is none that was ever written; later ones are not judged."""
    if type(found := document[key]) is not int or found < 1:
        raise ValueError(f"{key}: expected a whole number from 1 to {latest}, found {found!r}")
