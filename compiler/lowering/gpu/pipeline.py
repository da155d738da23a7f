"""Software pipelines: a block fetches the next tiles of its operands while it computes the current ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.lowering.stage import StageLowering
from core.device import ASYNC_COPIES_SINCE
from search.dag import Dag


def pipeline(
    lowering: StageLowering,
    loop: Any,
    operands: Sequence[str],
    stages: int,
    steps: int = 1,
    fetches_last: bool = False,
) -> None:
    """Pipeline a loop whose first children copy `operands` to shared memory, which holds `stages` tiles of
    each operand. The other children are `steps` that compute. One stage leaves the loop unchanged.

        for k0: fetch(k0); compute(k0)
    ->                                           # 2 stages
        fetch(0)
        for k0: fetch(k0 + 1); compute(k0)
        compute(last)

    Plain copies become asynchronous copies if the device has them, also those that pad with zeros. If a fetch
    also computes or transposes, TVM's asynchronous copies would be wrong, so it stays synchronous.

    With `fetches_last`, the loop computes before it fetches. Products that run asynchronously then overlap
    the next fetch:

        for k0: compute(k0); fetch(k0 + 1)
    """
    if stages == 1:
        return
    schedule, gpu = lowering.schedule, lowering.device.gpu
    assert gpu is not None
    schedule.annotate(loop, "software_pipeline_stage", [*[0] * len(operands), *[stages - 1] * steps])
    places = list(range(len(operands) + steps))
    order = places[steps:] + places[:steps] if fetches_last else places
    schedule.annotate(loop, "software_pipeline_order", order)
    are_copied = all(_is_copied(lowering.program.sketch.dag, name) for name in operands)
    if gpu.capability >= ASYNC_COPIES_SINCE and are_copied:
        schedule.annotate(loop, "software_pipeline_async_stages", [0])


def _is_copied(dag: Dag, name: str) -> bool:
    """Return whether rows of an operand are rows of a buffer in memory, between zeros if they are padded."""
    producer = dag.producer.get(name)
    if producer is None:
        return True
    if producer.reduction or producer.flops or len(producer.reads) != 1 or producer.extra_writes:
        return False
    (read,) = producer.reads
    before, after = dag.buffer[read.buffer], dag.buffer[name]
    if not read.indices or before.dtype != after.dtype or before.shape[-1] != after.shape[-1]:
        return False
    return read.indices[-1] == producer.write.indices[-1] and _is_copied(dag, read.buffer)
