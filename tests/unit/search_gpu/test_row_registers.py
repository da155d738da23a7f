"""Rows in the registers of a GPU's threads."""

from __future__ import annotations

import numpy as np
import pytest

from search.cost.analytic import estimate
from search.dag import Dag
from search.programs.annotate import sample
from search.programs.program import gather
from search.programs.validity import valid
from search.rules.space import generate
from search.sketches.row_registers import RowRegisters, row_registers
from search.sketches.sketch import Sketch
from search.stages.gpu import MAX_KEPT_BYTES
from tests.choices import choose
from tests.devices import GPU
from tests.unit.search import dags


def in_registers(graph: Dag) -> list[Sketch]:
    """Return the sketches with a kernel that keeps its rows in registers."""
    return [one for one in generate(graph, GPU) if any(stage.in_registers for stage in one.stages)]


def kept(sketch: Sketch) -> RowRegisters:
    (kernel,) = (stage for stage in sketch.stages if stage.in_registers)
    return row_registers(sketch, kernel)


def test_shared_values_of_a_chain_are_read_or_computed_once() -> None:
    sketch = in_registers(dags.softmax(16, 128))[0]
    chain = "across max in divide; keep exp in divide; across sum in divide; rows divide in registers"
    assert sketch.key == chain
    assert kept(sketch) == RowRegisters(128, {"data": ("max", "exp")}, ("exp",))


@pytest.mark.parametrize(
    ("graph", "readers"),
    [
        (dags.layer_norm(12, 768), ("sum", "variance", "norm")),
        (dags.layer_norm_one_pass(12, 768), ("sums", "norm")),
        (dags.norm(6, 128), ("square",)),
        (dags.total(4096), ("total",)),
    ],
)
def test_a_row_is_fetched_once_for_all_of_its_readers(graph: Dag, readers: tuple[str, ...]) -> None:
    assert kept(in_registers(graph)[0]).operands == {"data": readers}


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(dags.softmax(16, 100), id="no warp divides the row"),
        pytest.param(dags.global_pool(32, 64), id="rows across memory"),
        pytest.param(dags.attention(2, 128, 16), id="a product reads the rows, too"),
    ],
)
def test_other_rows_stay_in_memory(graph: Dag) -> None:
    assert not in_registers(graph)


def test_the_rows_in_memory_are_a_sketch_too() -> None:
    keys = [sketch.key for sketch in generate(dags.softmax(16, 128), GPU)]
    assert "across max in divide; inline exp; across sum in divide; rows divide" in keys


def test_threads_share_a_row_evenly_and_have_the_registers_for_it() -> None:
    sketch = in_registers(dags.softmax(16, 3072))[0]
    population = sample(sketch, 256, np.random.default_rng(0))
    threads, lanes = (population.chosen("divide", kind) for kind in ("threads", "lanes"))
    assert set(lanes.tolist()) == {1, 2, 4}
    assert (3072 % (threads * lanes) == 0).all()
    # Registers hold two rows of float32: the fetched row and the exponentials.
    assert (MAX_KEPT_BYTES * threads >= 2 * 3072 * 4).all()
    # 1024 threads with four lanes each would hold more than a row.
    widest = choose(sketch, {"threads": 1024, "rows": 1, "lanes": 4})
    assert not valid(gather([widest])).any()


def test_a_row_that_is_read_once_is_estimated_to_take_less_time() -> None:
    once, again = (
        next(s for s in generate(dags.softmax(4096, 1024), GPU) if s.key.endswith(end))
        for end in ("across sum in divide; rows divide in registers", "across sum in divide; rows divide")
    )
    fastest = [
        estimate(sample(sketch, 128, np.random.default_rng(0)), GPU).seconds.min() for sketch in (once, again)
    ]
    assert fastest[0] < fastest[1]
