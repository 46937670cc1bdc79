"""Many cases of one claim as one test, which names all that fail."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each(names: str, cases: Iterable[Any], ids: Callable[[Any], str] = repr) -> Callable[[Callable[..., None]], Any]:
    """As pytest.mark.parametrize, in one item: for tests without a fixture that a case could change."""
    keys, given = [name.strip() for name in names.split(",")], list(cases)
    assert given, f"no case for {names}"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def loop(**others: Any) -> None:
            failed = []
            for case in given:
                values = [case] if len(keys) == 1 else case
                try:
                    test(**dict(zip(keys, values, strict=True)), **others)
                except (Exception, SystemExit) as problem:
                    failed.append(f"{ids(case)[:80]}: {type(problem).__name__}: {problem}")
            assert not failed, f"{len(failed)} of {len(given)} fail:\n" + "\n".join(failed)

        rest = [one for one in inspect.signature(test).parameters.values() if one.name not in keys]
        loop.__signature__ = inspect.Signature(rest)
        loop.__name__, loop.__doc__, loop.__module__ = test.__name__, test.__doc__, test.__module__
        return pytest.mark.timeout(300)(loop)

    return decorate
