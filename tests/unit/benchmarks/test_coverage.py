"""Coverage of ONNX's operators: the counts, crashes, and the document."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from benchmarks.coverage import importers, page
from benchmarks.coverage.cases import Case
from benchmarks.coverage.importers import OURS, Attempts, attempt
from benchmarks.coverage.tried import TRIED, Outcome, Tried, TypedVerdict, Verdict
from benchmarks.results import figures
from docs.site.figures import COVERAGE
from tests.onnx_models import Builder

RIGHT, REFUSED = (
    Verdict(Outcome.RIGHT),
    Verdict(Outcome.REFUSED, "operator Foo of node 'bar' can't be imported"),
)


def case(kind: str, expected: Any, **attributes: Any) -> Case:
    builder = Builder()
    model = builder.model({"x": [2]}, {builder.op(kind, "x", **attributes): [2]})
    inputs = {"x": np.array([-1.0, 2.0], np.float32)}
    return Case("test", kind, "", model, inputs, (np.array(expected, np.float32),), 1e-3, 1e-7)


@pytest.mark.parametrize(
    ("tried", "outcome", "why"),
    [
        (case("Relu", [0, 2]), Outcome.RIGHT, ""),
        (case("Relu", [1, 2]), Outcome.WRONG, "Mismatched elements: 1 / 2"),
        (case("Relu", [[0, 2]]), Outcome.WRONG, "incorrect shape"),
        (case("Det", [0, 0]), Outcome.REFUSED, "operator Det (version 11) of node 'det0' can't be imported"),
    ],
)
def test_a_case_has_the_expected_outcome(tried: Case, outcome: Outcome, why: str) -> None:
    answer = attempt(OURS, tried)
    assert answer.outcome is outcome
    assert why in answer.why


class _Deadly:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return os._exit, (7,)


@pytest.mark.slow_lane
def test_a_crash_is_an_outcome_and_the_next_case_is_tried_in_another_process() -> None:
    with Attempts(OURS) as attempts:
        crashed = attempts.attempt(_deadly())
        assert (crashed.outcome, crashed.why) == (Outcome.CRASHED, "the process ended with status 7")
        assert attempts.attempt(case("Relu", [0, 2])) == RIGHT


def _deadly() -> Any:
    return _Deadly()


def test_a_case_that_hangs_has_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importers, "CASE_S", 0.0)
    with Attempts(OURS) as attempts:
        assert attempts.attempt(case("Relu", [0, 2])) == Verdict(Outcome.CRASHED, "it takes longer than 0 s")


def test_ordinary_operators_are_counted_apart() -> None:
    tried = [
        Tried("a", "Add", "", RIGHT, RIGHT),
        Tried("b", "Foo", "", REFUSED, RIGHT),
        Tried("c", "Adam", "training", Verdict(Outcome.REFUSED, "no"), REFUSED),
    ]
    found = {each.name: each for each in page.figures_of(tried)}
    right = found[f"{page.ORDINARY}: right"]
    assert (right.value, right.reached, right.note) == (50.0, False, "TVM's importer: 100.0")
    assert found[f"{page.EVERYTHING}: cases refused"].value == 2
    assert found["refusals that name no node, input or output"].value == 1


def test_the_stored_figures_follow_from_the_stored_cases() -> None:
    assert page.figures_of(TRIED.read(COVERAGE)) == list(figures.read(COVERAGE).figures)


def test_operators_have_a_row_each_and_failures_their_message() -> None:
    tried = [Tried("a", "Add", "", RIGHT, REFUSED), Tried("b", "Foo", "", REFUSED, RIGHT)]
    found = figures.Results(tuple(page.figures_of(tried)), "machine", "date", "command")
    sections = page.sections(found, tried)
    assert "| Add | 1 | 1 |  |  |  |  | 1 |  |  |" in sections["operators"]
    assert "| b | refused | operator Foo of node 'bar' can't be imported |" in sections["not right"]
    assert "| Foo |" not in sections["left out"]


def test_a_cell_of_types_shows_the_worst_outcome() -> None:
    answers = [
        TypedVerdict("a", "Add", "int8", RIGHT),
        TypedVerdict("b", "Add", "int8", REFUSED),
        TypedVerdict("c", "Add", "bool", None),
        TypedVerdict("d", "Sub", "int8", Verdict(Outcome.WRONG, "0 instead of 1")),
    ]
    table = page.types_table(answers)
    assert "| operator | bool | int8 |" in table
    assert "| Add | unknown | refused |" in table
    assert "| Sub |  | wrong |" in table
    found = {each.name: each.value for each in page.figures_of_types(answers)}
    assert found[f"{page.WITH_TYPES}: cases wrong"] == 1
    assert found[f"{page.WITH_TYPES}: cases without expected values"] == 1
