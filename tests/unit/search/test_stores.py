"""The statements of programs and the loops around them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from search.cost.store_features import GROUPS, WIDTH, describe
from search.cost.stores import LoopKind, Store, stores_of
from search.programs.program import gather
from search.sketches.sketch import Sketch
from tests.unit.search import dags
from tests.unit.search.dags import DEVICE
from tests.unit.search.known_good import row_lengths
from tests.unit.search.programs import drawn, program_of, seeds, sketch_of, sketches


@given(sketches, seeds)
def test_loops_cover_what_they_say(sketch: Sketch, seed: int) -> None:
    """Every loop iterates at least as often as it multiplies what is covered."""
    for store in stores_of(drawn(sketch, seed), DEVICE):
        loops = store.loops
        assert len(loops.inside) == len(loops.extents) + 1 == len(loops.kinds) + 1
        assert (loops.extents >= 1 - 1e-9).all()
        assert (loops.inside[:-1] >= loops.inside[1:] - 1e-9).all()
        grown = (loops.inside[:-1] / loops.inside[1:]).prod(axis=1)
        assert (loops.extents >= grown * (1 - 1e-9)).all()


@given(sketches, seeds)
def test_a_statement_runs_at_least_once_for_every_iteration(sketch: Sketch, seed: int) -> None:
    for store in stores_of(drawn(sketch, seed), DEVICE):
        if (
            store.computes
            and store.node.name not in sketch.hosts
            and not sketch.stage[store.node.name].epilogue
        ):
            assert (store.loops.iterations >= store.node.iterations * (1 - 1e-9)).all()


@given(sketches, seeds)
def test_descriptions_are_finite_and_those_of_missing_statements_zero(sketch: Sketch, seed: int) -> None:
    population = drawn(sketch, seed)
    for store in stores_of(population, DEVICE):
        described = describe(sketch.dag, store)
        assert described.shape == (len(population), WIDTH)
        assert np.isfinite(described).all()
        assert not described[~store.present].any()


def _column(group: str, number: int = 0) -> int:
    before = list(GROUPS)[: list(GROUPS).index(group)]
    return sum(GROUPS[name] for name in before) + number


def _value(store: Store, sketch: Sketch, group: str, number: int = 0) -> float:
    """Not as a logarithm."""
    return float(np.exp2(describe(sketch.dag, store)[0, _column(group, number)]) - 1)


def _tile() -> tuple[Sketch, Store]:
    """8 x 32 results in a tile, the whole reduction inside, 8 x 2 tiles in parallel."""
    sketch = sketch_of(dags.matmul(n=64, m=64, k=64), "tile matmul SSRSRS")
    factors = {"i": (8, 1, 1, 8), "j": (2, 1, 1, 32), "k": (1, 64)}
    ways = {"unroll": 64, "read a": "direct", "read b": "direct"}
    program = program_of(sketch, matmul={**factors, **ways})
    store = next(stores_of(gather([program]), DEVICE))
    return sketch, store


def test_the_loops_of_a_tile_by_hand() -> None:
    _, store = _tile()
    loops = [
        (int(extent), LoopKind(int(kind)))
        for extent, kind in zip(store.loops.extents[:, 0], store.loops.kinds[:, 0], strict=True)
        if extent > 1
    ]
    assert loops == [
        (16, LoopKind.PARALLEL),
        (64, LoopKind.SERIAL),
        (8, LoopKind.UNROLLED),
        (32, LoopKind.VECTORIZED),
    ]


@pytest.mark.parametrize(
    ("group", "number", "expected"),
    [
        ("vectorized", 1, 32),
        ("unrolled", 1, 8),
        ("parallel", 2, 16),
        ("loops", 0, 64**3),
        ("loops", 1, 4),
        ("loops", 2, 64),
        # The result is in as many lines as b, and comes first; every step of k comes back to the whole tile.
        ("buffer 0: unique bytes", 0, 64 * 64 * 4),
        ("buffer 0: bytes", 0, 64**3 * 4),
        ("buffer 0: reuse count", 0, 64),
        ("buffer 0: reuse distance", 0, 8 * 32),
        ("buffer 0: stride", 0, 1),
    ],
)
def test_the_description_of_a_tile_by_hand(group: str, number: int, expected: float) -> None:
    sketch, store = _tile()
    assert _value(store, sketch, group, number) == pytest.approx(expected, rel=1e-6)


def test_partial_results_are_vectors() -> None:
    sketch = sketch_of(row_lengths(4, 1009), "nest sum rfactor uneven; nest length")
    values = {
        "sum": {"lanes": 16, "parallel": 1, "unroll": 0},
        "length": {"vector": 1, "parallel": 0, "unroll": 0},
    }
    store = next(stores_of(gather([program_of(sketch, **values)]), DEVICE))
    assert store.loops.extents[-1, 0] == 16
    assert store.loops.iterations[0] == 4 * 64 * 16
