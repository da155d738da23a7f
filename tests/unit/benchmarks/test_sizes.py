"""Figures of networks in several sizes."""

from __future__ import annotations

import pytest

from benchmarks.sizes import NETWORKS, Compared, Measured, figures_of
from benchmarks.timing.interleaved import Timings


def test_each_size_is_compared_with_the_same_size_tuned_alone() -> None:
    sizes = (
        Measured(16, Timings((0.01, 0.012)), Timings((0.01, 0.012))),
        Measured(64, Timings((0.022, 0.022)), Timings((0.02, 0.02))),
    )
    first, second, seconds = figures_of("encoder", NETWORKS["encoder"], Compared(sizes, 48, 60.0, 100.0))
    assert first.name == "encoder, tokens=16: latency tuned together relative to the size tuned alone"
    assert (first.value, first.reached, first.note) == (1.0, True, "11 ms, alone 11 ms")
    assert second.value == pytest.approx(1.1)
    assert second.reached is False
    assert (seconds.value, seconds.unit) == (60.0, "s")


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_leave_their_dimension_open(name: str) -> None:
    network = NETWORKS[name]
    [first, *_] = network.make(name).graph.input
    assert network.dimension in {dim.dim_param for dim in first.type.tensor_type.shape.dim}
