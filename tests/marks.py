"""Marks for tests that are repeated over many values: a few of them are fast tests, all are tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_except(values: Iterable[Any], *fast: Any) -> list[Any]:
    """Return the values to parametrize a test with, of which all are slow but these."""
    values = list(values)
    assert all(value in values for value in fast), f"{fast} are among {values}"
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]
