"""A network's latency, as the sum over the subgraphs that it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class NetworkTask(Protocol):
    """A subgraph, or one that may take the `place` of another, which occurs `weight` times; `best_s` is the
    best latency known, None before any was measured."""

    @property
    def place(self) -> str: ...
    @property
    def weight(self) -> int: ...
    @property
    def covered(self) -> bool: ...
    @property
    def best_s(self) -> float | None: ...


AnyTask = TypeVar("AnyTask", bound=NetworkTask)


def fastest_tasks(tasks: Sequence[AnyTask]) -> list[AnyTask]:
    """Return the fastest measured task of each place: those that would be compiled in now."""
    measured = sorted(
        (task for task in tasks if task.best_s is not None), key=lambda task: task.best_s or 0.0
    )
    fastest: dict[str, AnyTask] = {}
    for task in measured:
        fastest.setdefault(task.place, task)
    return list(fastest.values())


def network_s(tasks: Sequence[NetworkTask]) -> float | None:
    """Return the network's latency as the sum of the fastest task of each place, or None until every covered
    place has one."""
    places = {task.place for task in tasks if task.covered}
    fastest = fastest_tasks(tasks)
    is_known = bool(places) and places <= {task.place for task in fastest}
    return sum(task.weight * (task.best_s or 0.0) for task in fastest) if is_known else None
