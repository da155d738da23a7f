"""What the benchmarks' command lines have in common."""

from __future__ import annotations


def positive(text: str) -> int:
    """Raises ValueError for what is no number above zero."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
