from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.device import Device
from search.dag import BufferAccess, Dag
from search.evolution.transfer import nearest_factors, transfer_programs
from search.programs.annotate import keep_valid
from search.programs.program import Program, gather
from search.rules.space import generate
from search.sketches.factors import Tail
from search.sketches.variables import Split
from tests.devices import GPU
from tests.unit.search import dags
from tests.unit.search.dags import DEVICE
from tests.unit.search.programs import all_programs, drawn, program_of, seeds, sketch_of

# A workload and another one with the same structure.
PAIRS: dict[str, tuple[Callable[[], Dag], Callable[[], Dag]]] = {
    "matmul": (dags.matmul, lambda: dags.matmul(100, 256, 31)),
    "conv2d": (dags.conv2d, lambda: dags.conv2d(28, 24, 48)),
    "depthwise": (dags.depthwise, lambda: dags.depthwise(7, 96)),
    "softmax": (dags.softmax, lambda: dags.softmax(64, 128)),
    "layer_norm": (dags.layer_norm, lambda: dags.layer_norm(30, 64)),
    "grouped": (dags.grouped, lambda: dags.grouped(16, 32, 4)),
    "winograd": (dags.winograd, lambda: dags.winograd(9, 8, 16)),
    "add_relu": (dags.add_relu, lambda: dags.add_relu(7, 100)),
    "awkward": (dags.matmul, lambda: dags.matmul(49, 127, 1)),
}


def renamed(graph: Dag) -> Dag:
    """The same computation under other names."""

    def moved(access: BufferAccess) -> BufferAccess:
        return replace(access, buffer=f"{access.buffer}_1")

    nodes = tuple(
        replace(
            node,
            name=f"{node.name}_1",
            write=moved(node.write),
            reads=tuple(map(moved, node.reads)),
            extra_writes=tuple(map(moved, node.extra_writes)),
        )
        for node in graph.nodes
    )
    return Dag("other", tuple(replace(b, name=f"{b.name}_1") for b in graph.buffers), nodes)


@settings(max_examples=60)
@given(st.sampled_from(sorted(PAIRS)), st.sampled_from([DEVICE, GPU]), seeds)
def test_transferred_programs_are_legal_and_of_the_given_sketches(
    name: str, device: Device, seed: int
) -> None:
    source, target = (generate(make(), device) for make in PAIRS[name])
    sketch = source[seed % len(source)]
    found = transfer_programs(all_programs(drawn(sketch, seed, 8)), target)
    assert len(set(found)) == len(found)
    for program in found:
        assert any(program.sketch is known for known in target)
        assert len(keep_valid(gather([program]))) == 1


@settings(max_examples=60)
@given(st.sampled_from(sorted(PAIRS)), st.sampled_from([DEVICE, GPU]), seeds)
def test_programs_of_the_same_workload_are_unchanged(name: str, device: Device, seed: int) -> None:
    make, _ = PAIRS[name]
    sketches = generate(make(), device)
    programs = all_programs(drawn(sketches[seed % len(sketches)], seed, 8))
    exact = [p for p in programs if all(_is_tabled(p, v) for v in p.sketch.variables)]
    assert transfer_programs(exact, sketches) == exact


def _is_tabled(program: Program, variable: object) -> bool:
    return not isinstance(variable, Split) or list(program.values_of(variable)) in variable.table.tolist()


@settings(max_examples=30)
@given(st.sampled_from(sorted(PAIRS)), seeds)
def test_names_do_not_matter(name: str, seed: int) -> None:
    make, _ = PAIRS[name]
    sketches, others = generate(make(), DEVICE), generate(renamed(make()), DEVICE)
    programs = all_programs(drawn(sketches[seed % len(sketches)], seed, 8))
    assert [p.values for p in transfer_programs(programs, others)] == [
        p.values for p in transfer_programs(programs, sketches)
    ]


def test_the_register_tile_is_kept_where_extents_allow_it() -> None:
    small, large = dags.matmul(32, 48, 64), dags.matmul(128, 96, 256)
    settings = {"i": (2, 2, 1, 8), "j": (1, 1, 3, 16), "k": (16, 4), "unroll": 64}
    program = program_of(sketch_of(small, "tile matmul SSRSRS"), matmul=settings)
    (found,) = transfer_programs([program], generate(large, DEVICE))
    assert found.factors("matmul", 0) == (8, 2, 1, 8)
    assert found.factors("matmul", 1) == (2, 1, 3, 16)
    assert found.factors("matmul", 2) == (64, 4)
    assert found.choice("matmul", "unroll") == 64


def test_programs_of_another_structure_are_left_out() -> None:
    programs = all_programs(drawn(generate(dags.matmul(), DEVICE)[0], 0, 4))
    assert transfer_programs(programs, generate(dags.softmax(), DEVICE)) == []
    assert transfer_programs([], generate(dags.matmul(), DEVICE)) == []


@given(st.integers(2, 300), st.integers(2, 4), st.sampled_from(list(Tail)), st.integers(2, 300), seeds)
def test_factors_are_valid_and_the_nearest_ones(
    extent: int, parts: int, tail: Tail, other: int, seed: int
) -> None:
    source, target = Split("n", 0, other, parts, tail), Split("n", 0, extent, parts, tail)
    wanted = [int(f) for f in source.draw(1, np.random.default_rng(seed))[0]]
    found = nearest_factors(wanted, target)
    target.check(found)
    assert found in target.table.tolist()
    if wanted in target.table.tolist():
        assert found == wanted


@pytest.mark.parametrize(
    ("wanted", "extent", "found"),
    [((8, 4, 16), 1024, (16, 4, 16)), ((8, 4, 16), 64, (1, 4, 16)), ((8, 4, 16), 48, (1, 3, 16))],
)
def test_the_outermost_factor_takes_the_remainder(
    wanted: tuple[int, ...], extent: int, found: tuple[int, ...]
) -> None:
    assert tuple(nearest_factors(wanted, Split("n", 0, extent, 3))) == found
    assert math.prod(found) == extent
