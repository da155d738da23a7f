"""Marks for parametrized tests with many values: a few always run, the others in a slower lane."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.lanes import USUAL_S


def slow_except(values: Iterable[Any], *fast: Any) -> list[Any]:
    """Return the values to parametrize a test with; all but `fast` are marked `slow`."""
    return _marked_except(pytest.mark.slow, values, fast)


def slow_lane_except(values: Iterable[Any], *kept: Any, seconds: float = USUAL_S) -> list[Any]:
    """Return the values to parametrize a test with; all but `kept` are marked `slow_lane`. Each takes about
    `seconds` of CPU time.
    """
    return _marked_except(pytest.mark.slow_lane(seconds=seconds), values, kept)


def _marked_except(mark: pytest.MarkDecorator, values: Iterable[Any], kept: tuple[Any, ...]) -> list[Any]:
    values = list(values)
    assert all(value in values for value in kept), f"{kept} are among {values}"
    return [value if value in kept else pytest.param(value, marks=mark) for value in values]
