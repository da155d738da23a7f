"""Where the search of a task begins that little is known of: at what was good for similar workloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from records.jobs import tasks
from records.schedules import schedules
from records.schedules.schedules import Record
from scheduler.context import Context
from scheduler.planning.job_snapshot import JobSnapshot
from scheduler.planning.spaces import Space
from search.evolution.transfer import transfer_programs
from search.programs.program import Program

WORKLOADS = 4
PROGRAMS = 4
# With so many records of its own that went well, a task needs no others.
ENOUGH = 16


def seeds(
    context: Context, situation: JobSnapshot, spaces: Mapping[str, Space]
) -> dict[str, tuple[Program, ...]]:
    """By workload hash; the best programs of the nearest workloads of the same kind, fitted to this one."""
    poor = {name: spaces[name] for name in _little_known(situation) if name in spaces}
    if not poor:
        return {}
    with context.database.begin() as session:
        tags = tasks.tags(session, situation.device.key)
        near = {name: nearest(name, space.tag, tags) for name, space in poor.items()}
        best = {
            other: schedules.fastest(session, situation.device.key, other, PROGRAMS)
            for other in {other for others in near.values() for other in others}
        }
    others = context.spaces.load(context.database, sorted(best), situation.device)
    return {name: _fitted(poor[name], [(others.get(o), best[o]) for o in near[name]]) for name in poor}


def nearest(name: str, tag: str, tags: Mapping[str, str]) -> list[str]:
    """The hashes of the others of the same kind whose order of work is the closest; `tags` is by hash."""
    kind, work = _parts(tag)
    distances = sorted(
        (abs(_parts(other)[1] - work), known)
        for known, other in tags.items()
        if known != name and _parts(other)[0] == kind
    )
    return [known for _, known in distances[:WORKLOADS]]


def _parts(tag: str) -> tuple[str, int]:
    kind, _, work = tag.partition(":")
    return kind, int(work)


def _little_known(situation: JobSnapshot) -> list[str]:
    return [
        task.workload_hash
        for task in situation.tasks
        if sum(r.latency_s is not None for r in situation.records.get(task.workload_hash, ())) < ENOUGH
    ]


def _fitted(space: Space, best: Iterable[tuple[Space | None, Sequence[Record]]]) -> tuple[Program, ...]:
    """Made anew only when other programs have become the best ones."""
    programs = {
        record.trace: program
        for other, records in best
        if other is not None
        for record in records
        if (program := other.program(record.trace, record.program)) is not None
    }
    if space.seeds[0] != programs.keys():
        fitted = transfer_programs(list(programs.values()), space.search.sketches)
        space.seeds = (frozenset(programs), tuple(fitted))
    return space.seeds[1]
