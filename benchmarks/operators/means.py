"""What holds for many operators, in one figure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from benchmarks.results.figures import Aim, Figure, figure, number


def mean(name: str, values: Mapping[str, float | None], unit: str, aim: Aim | None = None) -> list[Figure]:
    """The geometric mean over the operators that have a value, the others named; empty when none has."""
    known = {operator: value for operator, value in values.items() if value is not None}
    if not known:
        return []
    without = [operator for operator in values if operator not in known]
    lowest, highest = min(known, key=lambda key: known[key]), max(known, key=lambda key: known[key])
    peer = f"{number(known[lowest])} ({lowest}) .. {number(known[highest])} ({highest})"
    left_out = f"; without {', '.join(without)}" if without else ""
    operators = f"geometric mean of {len(known)} operators"
    value = statistics.geometric_mean(known.values())
    return [figure(f"{operators}: {name}", value, unit, aim=aim, peer=peer + left_out)]
