"""A model's latency, as the sum over its subgraphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class VariantTask(Protocol):
    """A task whose workload may be a variant of the workload `variant_of`, which is empty otherwise."""

    @property
    def workload_hash(self) -> str: ...
    @property
    def variant_of(self) -> str: ...


class NetworkTask(VariantTask, Protocol):
    """A subgraph that occurs `weight` times. `best_s` is its best latency, None before any was measured."""

    @property
    def weight(self) -> int: ...
    @property
    def covered(self) -> bool: ...
    @property
    def best_s(self) -> float | None: ...


AnyTask = TypeVar("AnyTask", bound=NetworkTask)


def base_workload(task: VariantTask) -> str:
    """Return the hash of the model's workload that a task computes, by a variant or by itself."""
    return task.variant_of or task.workload_hash


def fastest_tasks(tasks: Sequence[AnyTask]) -> list[AnyTask]:
    """Return the fastest measured task of each base workload. These would be compiled in now."""
    measured = sorted(
        (task for task in tasks if task.best_s is not None), key=lambda task: task.best_s or 0.0
    )
    fastest: dict[str, AnyTask] = {}
    for task in measured:
        fastest.setdefault(base_workload(task), task)
    return list(fastest.values())


def network_s(tasks: Sequence[NetworkTask]) -> float | None:
    """Return the sum of the latencies of the fastest tasks, weighted by how often they occur.

    It is None until every base workload that the search covers has been measured.
    """
    covered = {base_workload(task) for task in tasks if task.covered}
    fastest = fastest_tasks(tasks)
    is_known = bool(covered) and covered <= {base_workload(task) for task in fastest}
    return sum(task.weight * (task.best_s or 0.0) for task in fastest) if is_known else None
