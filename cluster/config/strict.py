"""What all models of user files share: no unknown keys, no changes, a key without a value counts as left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from cluster.config.redact import is_secret

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Strict(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty(cls, data: Any) -> Any:
        """`key:` with nothing behind it is `key` left out."""
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


def wrong_at(key: str | tuple[str, ...], message: str) -> PydanticCustomError:
    """An error of a validator about one key below the value it was given."""
    return PydanticCustomError(
        "wrong_at", "{message}", {"message": message, "at": (key,) if isinstance(key, str) else key}
    )


def check_env_name(name: str) -> str:
    """The name of an environment variable. Raises ValueError."""
    if not _ENV_NAME.fullmatch(name):
        raise ValueError(f"`{name}` is no name of an environment variable (letters, digits and _)")
    return name


def check_word(text: str) -> str:
    """Text that stands as one word in a command: no blanks, no dash in front. Raises ValueError."""
    if text.startswith("-") or re.search(r"\s|\x00", text):
        raise ValueError(f"found `{text}`; one word without blanks and without a dash in front is wanted")
    return text


def _check_env(env: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in env.items():
        check_env_name(name)
        if "\x00" in value:
            raise wrong_at(name, "holds a NUL character")
        if is_secret(name, value):
            raise wrong_at(name, f"looks like a secret, which no file here may hold; give it with -e {name}")
    return env


def _check_remote_path(text: str) -> str:
    if text and not re.match(r"/|~/|~$", text):
        raise ValueError(f"found `{text}`; a path on the host that starts with / or ~/ is wanted")
    return text


Count = Annotated[int, Field(ge=1)]
Environment = Annotated[dict[str, str], AfterValidator(_check_env)]
RemotePath = Annotated[str, AfterValidator(_check_remote_path)]
Word = Annotated[str, AfterValidator(check_word)]
