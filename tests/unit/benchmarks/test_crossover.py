"""Evolution with several shares of crossover, compared with mutation alone."""

from __future__ import annotations

import math
from itertools import product

import pytest

from benchmarks.crossover import SHARES, WINOGRAD, best_seconds, figures_of


def test_the_mean_is_over_layers_and_the_spread_over_seeds() -> None:
    winograd = next(iter(WINOGRAD))
    runs = list(product(["dense", winograd], range(3)))
    best = {
        share: {run: 1.0 + share * run[1] * (run[0] == winograd) for run in runs} for share in (0.0, *SHARES)
    }
    of_all, of_winograd, *rest = figures_of(best)
    assert len(rest) == 2 * len(SHARES) - 2
    assert of_winograd.value == pytest.approx((1.0 * 1.05 * 1.1) ** (1 / 3))
    assert of_all.value == pytest.approx(math.sqrt(of_winograd.value))
    assert of_winograd.spread == pytest.approx((1.01, 1.09))
    assert (of_all.count, of_winograd.count) == (2, 1)


def test_a_layer_with_a_single_node_evolves_alike_with_any_share() -> None:
    found = best_seconds("gelu-197x3072", 0)
    assert [*found] == [0.0, *SHARES]
    assert len({*found.values()}) == 1
