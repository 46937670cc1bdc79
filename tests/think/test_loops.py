"""A loop over cases fails for each that fails, and names it."""

from __future__ import annotations

import pytest
from loops import each


def test_every_case_that_fails_is_named(tmp_path: object) -> None:
    tried = []

    @each("x, y", [(1, 1), (1, 2), (2, 3), (4, 4)])
    @each("z", "ab")
    def claim(x: int, y: int, z: str, place: object) -> None:
        tried.append((x, y, z))
        assert x == y

    with pytest.raises(AssertionError) as failed:
        claim(place=tmp_path)
    assert len(tried) == 8
    assert "2 of 4 fail" in str(failed.value)
    assert "\n(1, 2): AssertionError" in str(failed.value)
    assert "\n(2, 3): AssertionError" in str(failed.value)


def test_no_case_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no case"):
        each("x", [])
