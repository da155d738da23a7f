"""Find programs of similar workloads, which initialize the search of a task with few records."""

from __future__ import annotations

from collections.abc import Mapping

from records.jobs import tasks
from records.schedules import schedules
from records.storage.database import Database
from scheduler.planning.job_snapshot import JobSnapshot
from scheduler.spaces import SearchSpace, Spaces
from search.programs.program import Program

MAX_WORKLOADS = 4
PROGRAMS_PER_WORKLOAD = 4
# A task with this many successful records needs no initial programs.
ENOUGH_RECORDS = 16


def find_initial_programs(
    database: Database, spaces: Spaces, snapshot: JobSnapshot, task_spaces: Mapping[str, SearchSpace]
) -> dict[str, tuple[Program, ...]]:
    """Return the best programs of the nearest workloads, fitted to the task's space, by workload hash.

    `task_spaces` are the spaces of the snapshot's workloads, by hash.
    """
    needy: dict[str, SearchSpace] = {}
    for task in snapshot.tasks:
        records = snapshot.records.get(task.workload_hash, ())
        num_worked = sum(record.latency_s is not None for record in records)
        if task.workload_hash in task_spaces and num_worked < ENOUGH_RECORDS:
            needy[task.workload_hash] = task_spaces[task.workload_hash]
    if not needy:
        return {}
    device = snapshot.device
    with database.begin() as session:
        tags = tasks.tags(session, device.key)
        near = {name: nearest(name, space.tag, tags) for name, space in needy.items()}
        best = {
            other: schedules.fastest(session, device.key, other, PROGRAMS_PER_WORKLOAD)
            for other in {other for others in near.values() for other in others}
        }
    others = spaces.load(sorted(best), device)
    return {
        name: space.transfer(
            {
                record.trace: program
                for other in near[name]
                if other in others
                for record in best[other]
                if (program := others[other].program(record.trace, record.program)) is not None
            }
        )
        for name, space in needy.items()
    }


def nearest(name: str, tag: str, tags: Mapping[str, str]) -> list[str]:
    """Return the hashes of workloads of the same kind, ordered by similarity of their amount of work. `tags`
    maps the hashes of all workloads to tags. The workload `name` is excluded.
    """
    kind, _, work = tag.partition(":")
    distances = []
    for other, other_tag in tags.items():
        other_kind, _, other_work = other_tag.partition(":")
        if other != name and other_kind == kind:
            distances.append((abs(int(other_work) - int(work)), other))
    return [other for _, other in sorted(distances)[:MAX_WORKLOADS]]
