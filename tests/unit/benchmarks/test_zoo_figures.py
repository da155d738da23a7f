"""Figures of the zoo: right networks, and the tuned fraction of the time."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import zoo
from benchmarks.results.metrics import TUNED_SHARE
from benchmarks.zoo import Tuned
from compiler.packaging.artifact import Manifest, TaskEntry


def tuned(name: str, share: float, wrong: str = "") -> Tuned:
    """Return a network of two subgraphs, of which the first is tuned and takes `share` of the time."""
    entries = (
        TaskEntry("a", "conv2d 1x3 -> 1x3", 1, "[]", 1.0, "trial", share=share),
        TaskEntry("b", "transpose 1x3 -> 3x1", 1, "[]", 1.0, share=1 - share),
    )
    return Tuned(name, wrong, Manifest(name, "sha", "{}", "class", (), (), 1, {}, 0.0, entries))


def test_only_subgraphs_under_schedules_of_the_search_are_tuned() -> None:
    found = {each.name: each for each in zoo.figures_of([tuned("one", 0.9), tuned("two", 0.7)], {})}
    assert found[f"mean {TUNED_SHARE}"].value == pytest.approx(80)
    mean = found[f"mean {TUNED_SHARE}"]
    assert (mean.note, mean.reached) == ("lowest: 70 % (two)", False)
    assert found["one: share of run time in tuned subgraphs"].note == "2 subgraphs, not tuned: transpose"
    assert found["networks that are right"].reached


def test_an_untuned_build_that_was_published_is_named() -> None:
    published = Tuned("one", "", Manifest("one", "sha", "{}", "class", (), (), 1, {}, 0.0))
    (*_, found) = zoo.figures_of([published], {})
    assert (found.value, found.note) == (0, "the untuned build is faster, and was published")


def test_wrong_and_failing_models_are_named() -> None:
    (right, *_) = zoo.figures_of([tuned("one", 0.9, "output 0 differs by 1")], {"two": "job 7 failed"})
    assert (right.value, right.reached) == (0, False)
    assert right.note == "one: output 0 differs by 1; two: job 7 failed"
    assert len(zoo.figures_of([], {"two": "job 7 failed"})) == 1


def test_outputs_may_differ_by_roundings_of_the_type() -> None:
    wanted, found = [np.zeros(3, np.float32)], [np.full(3, 0.01, np.float32)]
    assert zoo.difference("detector", found, wanted) == "output 0 differs by 0.01"
    assert zoo.difference("quantized", found, wanted) == ""
