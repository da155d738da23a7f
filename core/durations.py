"""Format durations and their ratios for users."""

from __future__ import annotations


def latency_text(secs: float | None) -> str:
    """Return a latency with three digits in s, ms or us, such as 14.2 ms; a dash for None."""
    if secs is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if secs >= size:
            return f"{secs / size:.3g} {unit}" if secs / size < 1000 else f"{secs / size:.0f} {unit}"
    return f"{secs / 1e-6:.3g} us"


def duration_text(secs: float | None) -> str:
    """Return a duration such as 40 s, 3 min 20 s or 2 h 5 min; "unknown" for None."""
    if secs is None:
        return "unknown"
    whole = round(secs)
    hours, minutes, seconds = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def times_text(ratio: float, unit: str, *, estimated: bool = False) -> str:
    """Return how many times as fast something is, such as 1.31x, about 1.31x or less than 0.01x."""
    if ratio < 0.005:
        return f"less than 0.01{unit}"
    return f"{'about ' if estimated else ''}{ratio:.2f}{unit}"
