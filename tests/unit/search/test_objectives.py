"""The slopes of objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from core.job import OBJECTIVE_NAMES
from search.objectives import (
    OBJECTIVES,
    Network,
    Objective,
    ObjectiveError,
    requirements,
    slopes,
    speedup,
    weighted_sum,
)

FAST, SLOW = Network("fast", 1e-3), Network("slow", 9e-3, weight=3.0)


def test_the_weighted_sum_gains_by_weight() -> None:
    assert slopes(weighted_sum, [FAST, SLOW]) == pytest.approx([0.5, 1.5])


def test_a_network_as_fast_as_required_is_left_alone() -> None:
    met = Network("met", 1e-3, required_s=2e-3)
    unmet = Network("unmet", 9e-3, required_s=2e-3)
    assert slopes(requirements, [met, unmet]) == pytest.approx([0.0, 2.0])
    assert slopes(requirements, [met, met]) == [1.0, 1.0]


def test_the_speedup_counts_a_percent_of_any_network_alike() -> None:
    """Nine times slower, so a second is worth a ninth; three times the weight."""
    found = slopes(speedup, [FAST, SLOW])
    assert found[0] / found[1] == pytest.approx(9 / 3, rel=1e-3)
    assert sum(found) == pytest.approx(2.0)


def test_the_papers_third_objective_has_the_same_slopes() -> None:
    def of_the_paper(networks: Sequence[Network]) -> float:
        references = (5e-3, 70e-3)
        ratios = (secs / one.latency_s for secs, one in zip(references, networks, strict=True))
        return -(math.prod(ratios) ** (1 / len(networks)))

    equal = [Network("a", 1e-3), Network("b", 9e-3)]
    assert slopes(of_the_paper, equal) == pytest.approx(slopes(speedup, equal), rel=1e-3)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_single_network_always_counts_fully(name: str) -> None:
    assert slopes(OBJECTIVES[name], [SLOW]) == pytest.approx([1.0])


def test_a_users_own_objective_may_be_any_function() -> None:
    slowest: Objective = lambda networks: max(one.latency_s for one in networks)  # noqa: E731
    assert slopes(slowest, [FAST, SLOW]) == pytest.approx([0.0, 2.0])
    rewards_slowness: Objective = lambda networks: networks[1].latency_s - networks[0].latency_s  # noqa: E731
    assert slopes(rewards_slowness, [FAST, SLOW]) == pytest.approx([0.0, 2.0])


@pytest.mark.parametrize(
    ("objective", "why"),
    [
        (lambda networks: networks[7].latency_s, "IndexError"),
        (lambda networks: "fast", "ValueError"),
        (lambda networks: math.nan, "not finite"),
        (lambda networks: math.inf, "not finite"),
    ],
)
def test_an_objective_that_fails_says_why(objective: Objective, why: str) -> None:
    with pytest.raises(ObjectiveError, match=why):
        slopes(objective, [FAST, SLOW])


def test_every_service_knows_the_objectives_of_the_search() -> None:
    assert set(OBJECTIVE_NAMES) == set(OBJECTIVES)
