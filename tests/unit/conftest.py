"""A fake clock."""

from __future__ import annotations

import pytest


class Clock:
    """A clock that the test moves forward."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()
