"""The cost model of a device class, trained on what all jobs have measured there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from records.schedules import Record
from scheduler.context import Context
from scheduler.known import parse
from scheduler.spaces import Space
from search.cost_model import CostModel
from search.device import Device
from search.policy import Sample, train


def trained(context: Context, device: Device, history: Sequence[Record]) -> CostModel:
    """Trained on `history`, newest first; the last model again while the history is the same."""
    stamp = (len(history), *((history[0].created_at, history[0].trace) if history else ()))
    last = context.spaces.learned.get(device.key)
    if last is not None and last[0] == stamp:
        return last[1]
    hashes = [record.workload_hash for record in history]
    spaces = context.spaces.load(context.database, hashes, device)
    model = train(_samples(history, spaces))
    context.spaces.learned[device.key] = (stamp, model)
    return model


def _samples(history: Sequence[Record], spaces: dict[str, Space]) -> list[Sample]:
    samples = []
    for record in reversed(history):
        space = spaces.get(record.workload_hash)
        program = parse(space, record.program) if space is not None else None
        if space is not None and program is not None:
            seconds = math.inf if record.latency_s is None else record.latency_s
            samples.append((space.search, program, seconds))
    return samples
