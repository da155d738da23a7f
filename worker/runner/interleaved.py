"""Interleaved timing of whole models, so that disturbances of the machine affect all models alike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from core.measurement import Measurement, Outcome, is_noisy

# There are ROUNDS rounds. While the machine is disturbed, there are more, up to MAX_ROUNDS.
ROUNDS = 5
MAX_ROUNDS = 20
# No turn begins once the rounds after the first have taken this long. A model whose latency is more than SLOW
# times the fastest is timed in the first round only.
MAX_S = 60.0
SLOW = 2.0

_Model = TypeVar("_Model")


async def time_interleaved(
    models: Sequence[_Model],
    first: Callable[[_Model, Sequence[Measurement]], Awaitable[Measurement]],
    again: Callable[[_Model], Awaitable[Measurement]],
    clock: Callable[[], float] | None = None,
) -> list[Measurement]:
    """Time each model in up to ROUNDS turns, or up to MAX_ROUNDS if the latencies are noisy.

    Return each model's latencies and its footprint of all turns, or the failure of one turn.

    `first` times a model in the first round, given the measurements of the models before it. `again` times it
    in later rounds. Each turn loads and unloads one model, so memory for one suffices, and a model that
    crashes the child doesn't affect the others.
    """
    now = clock or asyncio.get_running_loop().time
    measurements: list[Measurement] = []
    for model in models:
        measurements.append(await first(model, measurements))
    started_s = now()
    for number in range(1, MAX_ROUNDS):
        contenders = _contenders(measurements)
        if number >= ROUNDS and not any(is_noisy(measurements[index].run_s) for index in contenders):
            break
        # Each round begins with a different model.
        for index in [*range(number % len(models), len(models)), *range(number % len(models))]:
            if now() - started_s >= MAX_S or index not in _contenders(measurements):
                continue
            before = measurements[index]
            after = await again(models[index])
            if after.outcome is Outcome.OK:
                footprint = before.footprint and after.footprint and before.footprint.merged(after.footprint)
                after = replace(before, run_s=(*before.run_s, *after.run_s), footprint=footprint)
            measurements[index] = after
    return measurements


def _contenders(measurements: Sequence[Measurement]) -> set[int]:
    """Return the positions of models that run and aren't clearly slower than the fastest."""
    latencies = {
        index: each.latency_s for index, each in enumerate(measurements) if each.outcome is Outcome.OK
    }
    return {index for index, latency_s in latencies.items() if latency_s <= SLOW * min(latencies.values())}
