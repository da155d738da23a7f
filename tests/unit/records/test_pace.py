"""How fast devices are, and what they hold."""

from __future__ import annotations

from records.fleet import devices, leases
from records.fleet.leases import HeldLease
from records.fleet.results import LeaseResult
from tests.unit.records.farm import Farm, measured


class TestPace:
    def test_comes_from_leases_that_were_worked_off(self, farm: Farm) -> None:
        farm.register()
        ids = farm.issue("t1", "t2", "t3", "t4")
        farm.leased("one", limit=2, now=20.0)
        farm.report("one", ids[:1], now=22.0)
        assert devices.worker(farm.session, "worker").trial_s is None
        farm.report("one", ids[1:2], now=24.0)
        assert devices.worker(farm.session, "worker").trial_s == 2.0
        farm.leased("two", limit=2, now=30.0)
        farm.report("two", ids[2:], now=38.0)
        assert devices.worker(farm.session, "worker").trial_s == 3.0

    def test_a_clock_that_was_set_back_tells_nothing(self, farm: Farm) -> None:
        farm.register()
        ids = farm.issue("t1")
        farm.leased("lease", now=20.0)
        farm.report("lease", ids, now=19.0)
        assert devices.worker(farm.session, "worker").trial_s is None

    def test_neither_does_a_module_run(self, farm: Farm) -> None:
        farm.register()
        run_id = farm.add_run()
        farm.leased("lease", now=20.0)
        result = LeaseResult(measured(1e-2), module_run_id=run_id)
        assert leases.report(farm.session, "lease", "session", [result], now=30.0).closed
        assert devices.worker(farm.session, "worker").trial_s is None

    def test_a_minutes_trials(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        farm.leased("old", limit=1, now=20.0)
        farm.report("old", ids[:1], now=30.0)
        farm.leased("lease", limit=2, now=1000.0)
        farm.report("lease", ids[1:2], now=1010.0)
        assert leases.trials_per_minute(farm.session, now=1030.0) == {"worker": 2.0}
        farm.report("lease", ids[2:], now=1040.0)
        assert leases.trials_per_minute(farm.session, now=1120.0) == {"worker": 1.0}
        assert leases.trials_per_minute(farm.session, now=9000.0) == {}

    def test_what_is_held(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("one", limit=1, now=20.0)
        farm.leased("two", limit=1, now=21.0)
        assert leases.held(farm.session, now=22.0) == [
            HeldLease("one", "worker", 20.0),
            HeldLease("two", "worker", 21.0),
        ]
        farm.report("one", ids[:1], now=23.0)
        assert [lease.id for lease in leases.held(farm.session, now=24.0)] == ["two"]
        assert leases.held(farm.session, now=81.0) == []
