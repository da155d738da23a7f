"""Imported schedules are measured first. Their claimed times decide nothing."""

from __future__ import annotations

import zlib

from compiler.importing.model import ExtractedTask
from core.measurement import Outcome
from records.jobs import tasks
from records.jobs.trials import FALLBACK, Trial
from records.schedules import imports, schedules
from records.schedules.imports import TRIED_PER_TASK
from records.schedules.schedules import Record
from tests.unit.scheduler.farm import CONV, CUMSUM, DEVICE, MATMUL, FakeCompiler, Farm


def traces(count: int, *, works: bool) -> list[str]:
    """Return traces without effect that `measure` lets succeed or fail."""
    spaced = (f"[[],[]]{' ' * number}" for number in range(200))
    return [trace for trace in spaced if (zlib.crc32(trace.encode()) % 5 > 0) == works][:count]


def import_(farm: Farm, task: ExtractedTask, *found: str) -> None:
    """Import schedules of a task that claim to take 1 ns, 2 ns..."""
    known = (task.workload_hash, DEVICE.key)
    records = [
        Record(*known, trace, None, 1e-9 * ns, (1e-9 * ns,), Outcome.OK, DEVICE.target, "import", 0.0)
        for ns, trace in enumerate(found, 1)
    ]
    with farm.database.begin() as session:
        tasks.put_workload(session, task.workload_hash, task.module_json)
        assert imports.add(session, records, farm.now) == len(records)


def begin(farm: Farm, **request: object) -> None:
    farm.submit(**request)  # type: ignore[arg-type]
    farm.context.wake("intake", "job")
    farm.drain()


def trials_of(farm: Farm, task: ExtractedTask) -> list[Trial]:
    return [trial for trial in farm.trials() if trial.workload_hash == task.workload_hash]


def test_a_lie_about_times_neither_stops_a_search_nor_is_published(farm: Farm) -> None:
    farm.plug_in()
    [lie] = traces(1, works=False)
    import_(farm, MATMUL, lie)
    begin(farm, trials=8)
    assert trials_of(farm, MATMUL)[0].trace == lie, "measured before all others"
    assert all(task.best_s is None for task in farm.tasks())
    farm.finish()
    assert all(task.best_s is not None and task.best_s > 1e-5 for task in farm.tasks())
    _, manifest = farm.published()
    by_name = {entry.name: entry for entry in manifest.tasks}
    assert by_name["matmul"].trace not in (lie, None)
    assert (by_name["matmul"].latency_s or 0.0) > 1e-5
    with farm.database.begin() as session:
        assert schedules.successes(session, DEVICE.key) != []
        assert imports.drop(session, DEVICE.key, None, 0, limit=9) == [], "its measurement took its place"


def test_a_good_import_is_published_with_its_measured_latency(farm: Farm) -> None:
    farm.plug_in()
    [good] = traces(1, works=True)
    import_(farm, MATMUL, good)
    begin(farm, trials=0)
    assert [trial.trace for trial in trials_of(farm, MATMUL)] == [good], "it takes the best guess's place"
    farm.finish()
    _, manifest = farm.published()
    [entry] = [entry for entry in manifest.tasks if entry.name == "matmul"]
    assert (entry.trace, entry.source) == (good, "trial")
    assert (entry.latency_s or 0.0) > 1e-5


def test_bad_imports_do_not_replace_the_first_guess(farm: Farm) -> None:
    farm.plug_in()
    import_(farm, MATMUL, *traces(7, works=False))
    begin(farm, trials=0)
    farm.finish()
    tried = [trial for trial in trials_of(farm, MATMUL) if trial.program != FALLBACK]
    assert [trial.program for trial in tried[:TRIED_PER_TASK]] == [None] * TRIED_PER_TASK
    others = [trial for trial in trials_of(farm, CONV) if trial.program != FALLBACK]
    for *uncompilable, guess in (tried[TRIED_PER_TASK:], others):
        assert guess.program is not None
        assert guess.outcome is Outcome.OK
        assert {trial.outcome for trial in uncompilable} <= {Outcome.BUILD_ERROR}


def test_imports_of_a_subgraph_that_the_search_does_not_cover_are_measured(
    farm: Farm, compiler: FakeCompiler
) -> None:
    compiler.tasks = (MATMUL, CUMSUM)
    farm.plug_in()
    [good] = traces(1, works=True)
    import_(farm, CUMSUM, good)
    begin(farm, trials=0)
    farm.finish()
    [trial] = trials_of(farm, CUMSUM)
    assert (trial.trace, trial.outcome) == (good, Outcome.OK)
    _, manifest = farm.published()
    assert {entry.name: entry.trace for entry in manifest.tasks}["cumsum"] == good


def test_imports_take_a_limited_share_of_each_jobs_budget(farm: Farm) -> None:
    farm.plug_in()
    many = traces(2 * TRIED_PER_TASK, works=True)
    import_(farm, MATMUL, *many)
    begin(farm, trials=12)
    farm.finish()
    first = [trial.trace for trial in trials_of(farm, MATMUL) if trial.program is None and not trial.repeat]
    assert first == many[:TRIED_PER_TASK]
    farm.submit("next", trials=12)
    farm.finish("next")
    second = [trial.trace for trial in farm.trials("next") if trial.program is None and not trial.repeat]
    assert second == many[TRIED_PER_TASK:]
