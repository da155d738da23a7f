"""Software pipelines: a block fetches the next tiles of its operands while it computes with some."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule

from core.device import ASYNC_COPIES_SINCE, Gpu


def pipeline(schedule: Schedule, loop: Any, fetches: int, stages: int, gpu: Gpu) -> None:
    """Pipeline a loop whose first children are `fetches` copies to shared memory, with room for `stages`
    tiles of each operand. With one stage, leave it as it is.

        for k0: fetch(k0); compute(k0)
    ->                                           # 2 stages
        fetch(0)
        for k0: fetch(k0 + 1); compute(k0)
        compute(last)
    """
    if stages == 1:
        return
    schedule.annotate(loop, "software_pipeline_stage", [*[0] * fetches, stages - 1])
    schedule.annotate(loop, "software_pipeline_order", list(range(fetches + 1)))
    if gpu.capability >= ASYNC_COPIES_SINCE:
        schedule.annotate(loop, "software_pipeline_async_stages", [0])
