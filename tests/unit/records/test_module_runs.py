"""Whole models that devices time."""

from __future__ import annotations

import pytest

from records import blobs, jobs, leases, schedules
from records.leases import Reported, TrialResult
from search.measurement import Outcome
from tests.unit.records.farm import DEVICE, Farm, measured


class TestModuleRuns:
    def test_round_trip(self, farm: Farm) -> None:
        run_id = farm.add_run()
        farm.leased("lease")
        result = TrialResult(measured(1e-2), module_run_id=run_id)
        reported = leases.report(farm.session, "lease", "session", [result], now=30.0)
        assert reported == Reported(1, "job", closed=True)
        [run] = leases.module_runs(farm.session, "job")
        assert run == leases.ModuleRun(
            run_id,
            "job",
            "untuned",
            blobs.put(farm.session, b"artifact"),
            "done",
            0,
            Outcome.OK,
            (1e-2, 2e-2, 3e-2),
            "",
        )
        assert schedules.history(farm.session, DEVICE.key) == []

    def test_asking_again_is_the_same_run(self, farm: Farm) -> None:
        assert farm.add_run() == farm.add_run() != farm.add_run("tuned")

    def test_the_job_and_the_artifact_come_first(self, farm: Farm) -> None:
        with pytest.raises(blobs.BlobNotFound):
            leases.add_module_run(farm.session, "job", "tuned", "feed", now=1.0)
        with pytest.raises(jobs.JobNotFound):
            leases.add_module_run(farm.session, "x", "tuned", "feed", now=1.0)
