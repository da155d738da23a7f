"""Formats of durations."""

from __future__ import annotations

import pytest

from core.durations import duration_text, latency_text, times_text


@pytest.mark.parametrize(
    ("secs", "text"),
    [
        (None, "-"), (2.5, "2.5 s"), (1234.5, "1234 s"), (0.0142, "14.2 ms"), (0.5, "500 ms"),
        (3.21e-5, "32.1 us"), (1.5e-7, "0.15 us"),
    ],
)  # fmt: skip
def test_latencies_have_three_digits_and_a_unit(secs: float | None, text: str) -> None:
    assert latency_text(secs) == text


@pytest.mark.parametrize(
    ("secs", "text"),
    [(None, "unknown"), (0.4, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_are_whole_seconds(secs: float | None, text: str) -> None:
    assert duration_text(secs) == text


@pytest.mark.parametrize(
    ("ratio", "text", "estimate"),
    [
        (1.306, "1.31x", "about 1.31x"),
        (0.005, "0.01x", "about 0.01x"),
        (0.0012, "less than 0.01x", "less than 0.01x"),
    ],
)
def test_a_ratio_is_never_shown_as_0(ratio: float, text: str, estimate: str) -> None:
    assert times_text(ratio, "x") == text
    assert times_text(ratio, "x", estimated=True) == estimate
