"""Software pipelines: a block fetches the next tiles of its operands while it computes with some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.lowering.stage import StageLowering
from core.device import ASYNC_COPIES_SINCE


def pipeline(lowering: StageLowering, loop: Any, operands: Sequence[str], stages: int) -> None:
    """Pipeline a loop whose first children copy `operands` to shared memory, with room for `stages` tiles of
    each. With one stage, leave it as it is.

        for k0: fetch(k0); compute(k0)
    ->                                           # 2 stages
        fetch(0)
        for k0: fetch(k0 + 1); compute(k0)
        compute(last)

    The device copies by itself, if it can, what memory has as it is fetched. TVM would copy wrong values
    where a fetch computes them, as in an inlined transposition.
    """
    if stages == 1:
        return
    schedule, gpu = lowering.schedule, lowering.device.gpu
    assert gpu is not None
    schedule.annotate(loop, "software_pipeline_stage", [*[0] * len(operands), stages - 1])
    schedule.annotate(loop, "software_pipeline_order", list(range(len(operands) + 1)))
    is_computed = any(name in lowering.program.sketch.dag.producer for name in operands)
    if gpu.capability >= ASYNC_COPIES_SINCE and not is_computed:
        schedule.annotate(loop, "software_pipeline_async_stages", [0])
