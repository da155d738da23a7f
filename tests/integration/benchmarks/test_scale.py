"""A few simulated workers on a real server, PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import scale, simulated_workers
from benchmarks.results import figures
from benchmarks.simulated_workers import CountingWindow, CpuMeter, FleetStats
from records.jobs.trials import counts
from records.storage.database import Database
from tests.services import Postgresql


@pytest.mark.slow_lane(seconds=50)
@pytest.mark.usefixtures("postgresql", "redis_server")  # skipped where these are not installed
def test_a_small_fleet_writes_all_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "TRIAL_S", 0.02)
    monkeypatch.setattr(scale, "WARM_UP_S", 1.0)
    monkeypatch.setattr(scale, "WARM_UP_ALONE_S", 1.0)
    monkeypatch.setattr(scale, "MIN_LEASES", 2)
    file = tmp_path / "scale.json"
    assert scale.main(["--workers", "8", "--seconds", "3", "--json", str(file)]) == 0
    found = figures.read(file).figures
    values = {one.name: one.value for one in found}
    late = values.pop("results that came too late to count")
    assert late == 0
    may_be_zero = ("cores used", scale.WAITING)
    assert all(value >= 0 if name.startswith(may_be_zero) else value > 0 for name, value in values.items())
    assert values["cores used, server 1"] > 0
    assert values["cores used, PostgreSQL"] > 0
    assert any(name.startswith("two servers: trials stored") for name in values)


def test_a_simulated_worker_without_work_fails_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch() -> None:
        monkeypatch.setattr(simulated_workers, "BEGIN_LIMIT_S", 0.0)
        await simulated_workers._watch(CountingWindow(3, 1.0), FleetStats(1.0), CpuMeter({}))

    with pytest.raises(simulated_workers.TooSlow, match="3 workers have not had a lease"):
        asyncio.run(watch())


def test_a_process_is_metered_with_its_children() -> None:
    busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(10**7))'])"
    code = f"{busy}; print('done', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"done\n"
        used = CpuMeter({"it": parent.pid}).read()
        assert used["it"] > 0
        assert used[simulated_workers.OURS] > 0
        parent.communicate(b"\n")


def test_jobs_are_filled_with_work(postgresql: Postgresql) -> None:
    database = Database(postgresql.create("filled"))
    database.migrate()
    made = scale.fill(database, classes=2, each=3)
    with database.begin() as session:
        assert [counts(session, job_id).pending for job_id in made] == [3, 3]
    database.close()
