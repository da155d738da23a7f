"""Times whole models in turns: how fast the machine is, and what else it does, they all see alike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from core.measurement import Measurement, Outcome

ROUNDS = 5
# When turns after the first have taken so long, no other begins. What takes more than SLOW times as long as
# the fastest has only its first.
MOST_S = 60.0
SLOW = 2.0

_Model = TypeVar("_Model")


async def time_interleaved(
    models: Sequence[_Model],
    first: Callable[[_Model, Sequence[Measurement]], Awaitable[Measurement]],
    again: Callable[[_Model], Awaitable[Measurement]],
    clock: Callable[[], float] | None = None,
) -> list[Measurement]:
    """How long each model takes, by all of its turns; or how it failed in one of them.

    `first` is a model's first turn, and is told how those of the models before it have ended. Each turn loads
    one model and lets it go again: the memory of one suffices, and one that takes the measuring process down
    costs the others nothing.
    """
    now = clock or asyncio.get_running_loop().time
    found: list[Measurement] = []
    for model in models:
        found.append(await first(model, found))
    begun_s = now()
    for number in range(1, ROUNDS):
        # Each round begins with another one.
        for place in [*range(number % len(models), len(models)), *range(number % len(models))]:
            if now() - begun_s < MOST_S and _is_of_interest(found[place], found):
                found[place] = _together(found[place], await again(models[place]))
    return found


def _is_of_interest(one: Measurement, found: Sequence[Measurement]) -> bool:
    if one.outcome is not Outcome.OK:
        return False
    fastest_s = min(each.latency_s for each in found if each.outcome is Outcome.OK)
    return one.latency_s <= SLOW * fastest_s


def _together(before: Measurement, after: Measurement) -> Measurement:
    """A model that failed once fails."""
    if after.outcome is not Outcome.OK:
        return after
    return replace(before, run_secs=(*before.run_secs, *after.run_secs))
