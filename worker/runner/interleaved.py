"""Interleaved timing of whole models, so that disturbances of the machine affect all models alike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TypeAlias, TypeVar

from core.measurement import Measurement, Outcome, is_noisy, is_slowed

# There are ROUNDS rounds. While the machine is disturbed, there are more, up to MAX_ROUNDS. If ROUNDS rounds
# are at full speed, slow rounds don't count.
ROUNDS = 5
MAX_ROUNDS = 20
# No turn begins once the rounds after the first have taken this long. A model whose latency is more than SLOW
# times the fastest is timed in the first round only.
MAX_S = 60.0
SLOW = 2.0

_Model = TypeVar("_Model")
# The turns of a round, by the model's position.
_Round: TypeAlias = Mapping[int, Measurement]


async def time_interleaved(
    models: Sequence[_Model],
    first: Callable[[_Model, Sequence[Measurement]], Awaitable[Measurement]],
    again: Callable[[_Model], Awaitable[Measurement]],
    clock: Callable[[], float] | None = None,
) -> list[Measurement]:
    """Time each model in up to ROUNDS turns. If the latencies are noisy or the machine is slow, there are up
    to MAX_ROUNDS turns.

    Return a measurement of each model, joined from the turns that count. If a turn fails, return its failure.

    `first` times a model in the first round, given the measurements of the models before it. `again` times it
    in later rounds. Each turn loads and unloads one model, so memory for one suffices, and a model that
    crashes the child doesn't affect the others.
    """
    now = clock or asyncio.get_running_loop().time
    begun: dict[int, Measurement] = {}
    for index, model in enumerate(models):
        begun[index] = await first(model, list(begun.values()))
    rounds = [begun]
    started_s = now()
    while len(rounds) < MAX_ROUNDS and not _suffice(rounds):
        contenders, number = _contenders(rounds), len(rounds)
        turns: dict[int, Measurement] = {}
        # Each round begins with a different model.
        for index in [*range(number % len(models), len(models)), *range(number % len(models))]:
            if now() - started_s < MAX_S and index in contenders:
                turns[index] = await again(models[index])
        if not turns:
            break
        rounds.append(turns)
    joined = _joined(rounds, _counting(rounds))
    return [joined[index] for index in range(len(models))]


def _suffice(rounds: Sequence[_Round]) -> bool:
    """Return whether the models were timed well enough."""
    contenders = _contenders(rounds)
    if not contenders:
        return True
    joined = _joined(rounds, _counting(rounds))
    is_steady = not any(is_noisy(joined[index].run_s) for index in contenders)
    return is_steady and len(_undisturbed(rounds)) >= ROUNDS


def _undisturbed(rounds: Sequence[_Round]) -> list[_Round]:
    """Return the rounds in which the machine wasn't slowed down."""
    return [each for each in rounds if not any(is_slowed(turn.speed) for turn in each.values())]


def _counting(rounds: Sequence[_Round]) -> Sequence[_Round]:
    """Return the rounds that count."""
    undisturbed = _undisturbed(rounds)
    return undisturbed if len(undisturbed) >= ROUNDS else rounds


def _joined(rounds: Sequence[_Round], counting: Sequence[_Round]) -> dict[int, Measurement]:
    """Return the measurement of each model, by position: its turns in the rounds that count, or a failure."""
    joined = {}
    for index in rounds[0]:
        turns = [each[index] for each in rounds if index in each]
        failed = [turn for turn in turns if turn.outcome is not Outcome.OK]
        # A model that is too slow for more rounds has only its first turn.
        used = [each[index] for each in counting if index in each] or turns
        joined[index] = failed[-1] if failed else reduce(_join, used)
    return joined


def _join(before: Measurement, after: Measurement) -> Measurement:
    """Return the measurement of two turns. Its speed is the lower one."""
    footprint = before.footprint and after.footprint and before.footprint.merged(after.footprint)
    speed = before.speed and after.speed and min(before.speed, after.speed)
    return replace(before, run_s=(*before.run_s, *after.run_s), footprint=footprint, speed=speed)


def _contenders(rounds: Sequence[_Round]) -> set[int]:
    """Return the positions of models that run and aren't clearly slower than the fastest."""
    joined = _joined(rounds, _undisturbed(rounds) or rounds)
    latencies = {index: each.latency_s for index, each in joined.items() if each.outcome is Outcome.OK}
    return {index for index, latency_s in latencies.items() if latency_s <= SLOW * min(latencies.values())}
