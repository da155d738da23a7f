"""Every kind of stage has variables, validity and an estimate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from search.cost.analytic import estimate
from search.cost.cost_parameters import CostParameters
from search.cost.estimate import estimate_stage
from search.programs.validity import is_valid, valid
from search.rules.space import generate
from search.sketches.sketch import Sketch
from search.sketches.stage import StageKind
from search.stages.inlined import Fused, Inlined
from tests.devices import GPU
from tests.unit.search.dags import DAGS, DEVICE
from tests.unit.search.programs import drawn, seeds, sketches


@given(sketches, seeds)
def test_a_programs_latency_and_validity_come_from_its_stages(sketch: Sketch, seed: int) -> None:
    population = drawn(sketch, seed)
    parts = [estimate_stage(stage, population, CostParameters(DEVICE)).seconds for stage in sketch.stages]
    np.testing.assert_allclose(estimate(population, DEVICE).seconds, np.sum(parts, axis=0), rtol=1e-12)
    assert (
        valid(population) == np.all([is_valid(stage, population) for stage in sketch.stages], axis=0)
    ).all()


@given(sketches)
def test_the_variables_of_a_sketch_are_those_of_its_stages_in_order(sketch: Sketch) -> None:
    assert sketch.variables == tuple(v for stage in sketch.stages for v in stage.variables(sketch))
    assert all(v.node == stage.node for stage in sketch.stages for v in stage.variables(sketch))


@pytest.mark.parametrize("stage", [Inlined("pad"), Fused("relu")])
def test_a_stage_without_loops_leaves_nothing_open_and_takes_no_time(stage: Inlined | Fused) -> None:
    sketch = next(iter(generate(DAGS["conv2d"](), DEVICE)))
    population = drawn(sketch, 0)
    assert list(stage.variables(sketch)) == []
    assert is_valid(stage, population).all()
    assert not estimate_stage(stage, population, CostParameters(DEVICE)).seconds.any()


def test_every_kind_of_stage_is_derived_for_some_subgraph() -> None:
    derived = {
        stage.kind
        for make in DAGS.values()
        for device in (DEVICE, GPU)
        for sketch in generate(make(), device)
        for stage in sketch.stages
    }
    assert derived >= set(StageKind) - {StageKind.TENSOR, StageKind.LOCAL, StageKind.WARPGROUPS}
