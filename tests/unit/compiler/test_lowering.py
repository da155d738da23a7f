"""Every kind of stage has its lowering."""

from __future__ import annotations

from compiler.lowering.program import LOWERINGS
from search.sketches.stage import Stage
from search.stages import cpu, gpu, inlined


def test_every_kind_of_stage_has_its_lowering() -> None:
    named = [value for module in (cpu, gpu, inlined) for value in vars(module).values()]
    kinds = {value for value in named if isinstance(value, type) and issubclass(value, Stage)}
    assert set(LOWERINGS) == kinds - {Stage}
