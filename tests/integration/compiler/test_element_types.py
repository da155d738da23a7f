"""Operators with every element type of ONNX are right or rejected, and never crash the process."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from benchmarks.coverage import typed
from benchmarks.coverage.cases import load
from benchmarks.coverage.importers import OURS, Attempts
from benchmarks.coverage.tried import Outcome

FAST = {"BitCast", "Col2Im", "QLinearMatMul"}


def mistakes(operators: Collection[str]) -> list[str]:
    """Return what is wrong or crashes; of all operators if none is named."""
    cases = [case for case in load() if not operators or case.operator in operators]
    found, compared = [], 0
    with Attempts(OURS) as attempts:
        for cell in typed.typed_cells(cases, tuple(operators)):
            tried = typed.attempt(cell, attempts)
            compared += tried.answer is not None
            if tried.answer is None or tried.answer.outcome not in (Outcome.RIGHT, Outcome.REFUSED):
                found.append(f"{tried.case}: {tried.answer}")
    assert compared >= 5 * len(operators)
    return found


def test_some_operators_with_every_element_type() -> None:
    assert mistakes(FAST) == []


@pytest.mark.slow_lane(seconds=110)
@pytest.mark.timeout(1800)  # 1,662 cells
def test_every_operator_with_every_element_type() -> None:
    assert mistakes(()) == []
