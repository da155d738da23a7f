"""Whole models that devices time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.lease import ModuleKind
from core.measurement import Outcome
from records.fleet import leases, module_runs
from records.fleet.leases import ReportEffect
from records.fleet.module_runs import StoredModuleRun
from records.fleet.results import LeaseResult
from records.jobs import jobs
from records.schedules import schedules
from records.storage import blobs
from tests.devices import DEVICE
from tests.unit.records.farm import Farm, measured

KINDS: tuple[ModuleKind, ...] = ("untuned", "published", "tuned")


class TestModuleRuns:
    def test_a_module_run_survives_a_round_trip(self, farm: Farm) -> None:
        run_id = farm.add_run()
        farm.leased("lease")
        result = LeaseResult(replace(measured(1e-2), speed=0.9), module_run_id=run_id)
        reported = leases.report(farm.session, "lease", "session", [result], now=30.0)
        assert reported == ReportEffect(1, "job", closed=True)
        [run] = module_runs.of_job(farm.session, "job")
        assert run == StoredModuleRun(
            run_id,
            "job",
            "untuned",
            blobs.put(farm.session, b"artifact"),
            "done",
            0,
            "lease",
            Outcome.OK,
            (1e-2, 2e-2, 3e-2),
            "",
            speed=0.9,
        )
        assert schedules.history(farm.session, DEVICE.key) == []

    def test_requesting_a_module_run_again_returns_the_same_run(self, farm: Farm) -> None:
        assert farm.add_run() == farm.add_run() != farm.add_run("tuned")

    def test_a_lease_of_module_runs_ends_with_the_last_run(self, farm: Farm) -> None:
        first, second = farm.add_run(), farm.add_run("tuned")
        farm.leased("lease")
        results = [LeaseResult(measured(1e-2), module_run_id=run_id) for run_id in (second, first)]
        reported = [leases.report(farm.session, "lease", "session", [one], now=30.0) for one in results]
        assert [one.closed for one in reported] == [False, True]

    def test_module_runs_timed_separately_are_repeated_together(self, farm: Farm) -> None:
        for number, kind in enumerate(KINDS):
            run_id = farm.add_run(kind)
            farm.leased(f"lease {number}")
            result = LeaseResult(measured(1e-2), module_run_id=run_id)
            leases.report(farm.session, f"lease {number}", "session", [result], now=30.0)
        runs = module_runs.of_job(farm.session, "job")
        assert len({run.lease_id for run in runs}) == len(KINDS)
        module_runs.time_again(farm.session, [run.id for run in runs[1:]])
        again = farm.leased("again")
        assert [run.id for run in again.module_runs] == [run.id for run in runs[1:]]
        states = [(run.state, run.outcome) for run in module_runs.of_job(farm.session, "job")]
        assert states == [("done", Outcome.OK), ("leased", None), ("leased", None)]

    def test_the_job_and_the_artifact_come_first(self, farm: Farm) -> None:
        with pytest.raises(blobs.BlobNotFound):
            module_runs.add(farm.session, "job", "tuned", "feed", now=1.0)
        with pytest.raises(jobs.JobNotFound):
            module_runs.add(farm.session, "x", "tuned", "feed", now=1.0)
