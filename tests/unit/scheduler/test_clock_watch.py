"""If setting the clock makes leases lapse, no device is blamed."""

from __future__ import annotations

import hashlib
import io
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core.measurement import Outcome
from core.tokens import Scope
from core.webhook import WebhookEvent
from records import access, webhooks
from records.access import AuditEntry, Token
from records.fleet import names, workers
from records.fleet.names import NameClaim
from records.jobs import deletion, jobs, models
from records.storage import blobs
from records.storage.blob_store import BlobStore
from records.storage.database import Database
from records.storage.tables import WorkerRow
from records.webhooks import Webhook
from scheduler.upkeep import clock_watch
from scheduler.upkeep.clock_watch import DOUBTFUL_JUMP_S, MIN_JUMP_S, PATIENCE_S, ClockWatch
from scheduler.upkeep.garbage_collection import INTERVAL_S
from tests.unit.scheduler.farm import Farm

DAY_S = 86400.0


@pytest.mark.usefixtures("farm")
class TestWatch:
    @pytest.mark.parametrize("jump_s", [MIN_JUMP_S + 1, -MIN_JUMP_S - 1, DAY_S, -DAY_S])
    def test_a_jump_is_noticed_for_a_while(self, database: Database, jump_s: float) -> None:
        time_s = 5.0
        watch = ClockWatch(database, lambda: time_s)
        watch.update(lambda: 1000.0)
        assert not watch.has_jumped
        time_s += 2.0
        watch.update(lambda: 1002.0 + jump_s)
        assert watch.has_jumped
        time_s += PATIENCE_S - 1.0
        watch.update(lambda: 1001.0 + PATIENCE_S + jump_s)
        assert watch.has_jumped
        time_s += 1.0
        assert not watch.has_jumped

    def test_a_clock_that_is_adjusted_slowly_does_not_jump(self, database: Database) -> None:
        for number in range(100):
            # A new process each time. It knows what the last one stored.
            watch = ClockWatch(database, itertools.repeat(5.0 * number).__next__)
            watch.update(itertools.repeat(1000.0 + 5.1 * number).__next__)
            assert not watch.has_jumped

    def test_after_a_reboot_the_watch_starts_again(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clock_watch, "boot_id", lambda: "first")
        ClockWatch(database, lambda: 90_000.0).update(lambda: 1e9)
        monkeypatch.setattr(clock_watch, "boot_id", lambda: "second")
        watch = ClockWatch(database, lambda: 5.0)
        watch.update(lambda: 1e9 + 60.0)
        assert not watch.has_jumped


def jump(farm: Farm, by_s: float) -> None:
    """Set the clock."""
    farm.now += by_s
    farm.clock_set_s += by_s


def _finish_despite(farm: Farm, jumps: tuple[float, ...], then: Callable[[], None]) -> None:
    """Run a job, and set the clock in one lease after the other. No jump costs a trial an attempt."""
    farm.now = 100 * DAY_S
    farm.submit()
    farm.plug_in()
    for by_s in jumps:
        farm.sweep()
        assert farm.lease() is not None
        jump(farm, by_s)
        then()
        farm.sweep()
        assert {trial.state for trial in farm.trials()} == {"pending"}, "the lease is over"
        assert {trial.attempts for trial in farm.trials()} == {0}
    farm.finish()
    assert Outcome.DEVICE_LOST not in {trial.outcome for trial in farm.trials()}


@pytest.mark.parametrize("jumps", [(DAY_S, DAY_S, DAY_S), (DAY_S, -2 * DAY_S, DAY_S), (-DAY_S,) * 3])
def test_no_trial_is_given_up_because_the_clock_was_set(farm: Farm, jumps: tuple[float, ...]) -> None:
    def wait() -> None:
        farm.now += 10.0

    _finish_despite(farm, jumps, wait)


def test_devices_that_are_lost_count_as_before(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    farm.sweep()
    for _ in range(2):
        assert farm.lease() is not None
        farm.now += 61.0
        farm.sweep()
    assert Outcome.DEVICE_LOST in {trial.outcome for trial in farm.trials()}


@pytest.mark.parametrize("jumps", [(DAY_S, DAY_S, DAY_S), (DAY_S, -2 * DAY_S, DAY_S), (-DAY_S,) * 3])
def test_no_trial_is_given_up_because_the_clock_was_set_while_no_scheduler_ran(
    farm: Farm, jumps: tuple[float, ...]
) -> None:
    def restart_later() -> None:
        farm.now += PATIENCE_S
        farm.restart()

    _finish_despite(farm, jumps, restart_later)


def test_a_clock_that_was_set_far_ahead_makes_nothing_old(farm: Farm) -> None:
    with farm.database.begin() as session:
        sha = blobs.put(session, b"uploaded a moment ago")
        models.add(session, sha, "net", farm.now)
    farm.plug_in()
    farm.sweep()

    def is_stored() -> bool:
        with farm.database.begin() as session:
            return bool(workers.list_workers(session)) and blobs.size(session, sha) is not None

    jump(farm, 100 * DAY_S)
    for restarts in (False, True):
        farm.now += INTERVAL_S
        if restarts:
            farm.restart()
        farm.sweep()
        assert is_stored()
    jump(farm, -100 * DAY_S)  # an administrator has noticed
    farm.now += DOUBTFUL_JUMP_S + INTERVAL_S
    farm.sweep()
    assert is_stored()
    farm.now += deletion.UPLOAD_GRACE_S
    farm.sweep()
    assert not is_stored()


def test_a_clock_that_was_set_far_ahead_deletes_no_line_of_the_audit_log(farm: Farm) -> None:
    act = AuditEntry("t1", "POST /v1/jobs", "", "202", "10.0.0.7")
    kept_s = farm.settings.audit_days * DAY_S

    def lines() -> int:
        with farm.database.begin() as session:
            return len(access.audit(session, 10))

    for later_s in (kept_s + 1.0, 0.0):
        with farm.database.begin() as session:
            access.append_audit(session, {act: 1}, farm.now)
        farm.now += later_s
        farm.sweep()
    assert lines() == 1, "the first line is old"
    jump(farm, 2 * kept_s)
    for restarts in (False, True):
        if restarts:
            farm.restart()
        farm.sweep()
        assert lines() == 1
    jump(farm, -3 * kept_s)
    farm.now += DOUBTFUL_JUMP_S
    farm.sweep()
    assert lines() == 1


def test_a_file_that_is_being_stored_is_no_garbage_after_a_jump(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(f"file://{tmp_path}/store")
    monkeypatch.setattr(farm.database, "blob_store", store)
    farm.now = time.time()  # the time of files
    farm.sweep()
    data = b"its row comes soon"
    sha = hashlib.sha256(data).hexdigest()
    store.write(io.BytesIO(data), sha, len(data))
    jump(farm, 2 * DAY_S)
    farm.now += INTERVAL_S
    farm.sweep()
    assert store.older_than(farm.now) == [sha]


class TestSetBack:
    """A scheduler that starts after the clock was set back a day, which no scheduler has seen."""

    def test_a_dead_schedulers_claim_ends(self, farm: Farm) -> None:
        farm.now = 100 * DAY_S
        farm.submit()
        farm.plug_in()
        with farm.database.begin() as session:
            assert jobs.claim_job(session, "job", "a scheduler that was killed", farm.now, 60.0)
        farm.now -= DAY_S
        farm.restart()
        farm.finish()

    def test_a_held_claim_survives_a_clock_change(self, farm: Farm) -> None:
        farm.submit()
        with farm.database.begin() as session:
            assert jobs.claim_job(session, "job", "another", farm.now, farm.settings.claim_ttl_s)
        farm.sweep()
        with farm.database.begin() as session:
            assert not jobs.claim_job(session, "job", "here", farm.now, farm.settings.claim_ttl_s)

    def test_a_failed_step_is_tried_again(self, farm: Farm) -> None:
        farm.now = 100 * DAY_S
        farm.submit()
        farm.plug_in()
        farm.compiler.import_error = OSError("the disk is full")
        farm.sweep()
        farm.sweep()
        farm.compiler.import_error = None
        farm.now -= DAY_S
        farm.restart()
        farm.finish()

    def test_a_silent_worker_is_lost_within_a_minute(self, farm: Farm) -> None:
        farm.now = 100 * DAY_S
        farm.plug_in()
        farm.now -= DAY_S
        farm.restart()
        farm.sweep()
        farm.now += 60.0
        with farm.database.begin() as session:
            assert workers.get(session, "worker").is_lost(farm.now)
            row = session.get(WorkerRow, "worker")
            assert row is not None
            row.boot_id = "another machine"
            names.check_name_claim(session, row, NameClaim(boot_id="this machine"), False, farm.now)

    def test_a_time_limit_holds(self, farm: Farm) -> None:
        farm.now = 100 * DAY_S
        farm.submit(trials=100_000, minutes=1.0)
        farm.plug_in()
        for _ in range(4):
            farm.tick()
        assert farm.job().started_at is not None
        farm.now -= DAY_S
        farm.restart()
        farm.finish(ticks=200)

    def test_a_webhook_is_retried_after_the_clock_jumps(self, farm: Farm) -> None:
        farm.now = 100 * DAY_S
        told = Webhook("hook", "https://example.com", (WebhookEvent.JOB_FINISHED,), "whsec_", farm.now)
        with farm.database.begin() as session:
            webhooks.add(session, told)
            webhooks.emit(session, WebhookEvent.JOB_FINISHED, {}, farm.now)
            [first] = webhooks.due(session, farm.now, 10)
            begun = webhooks.begin_attempt(session, first, farm.now)
            assert begun is not None
            webhooks.end_attempt(session, begun, 500, "failed", farm.now)
        farm.sweep()
        with farm.database.begin() as session:
            assert webhooks.due(session, farm.now, 10) == [], "a retry that waits goes on waiting"
        farm.now -= DAY_S
        farm.restart()
        farm.sweep()
        with farm.database.begin() as session:
            assert webhooks.due(session, farm.now, 10) == [first]


def test_devices_that_are_lost_count_while_the_scheduler_starts_again(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    farm.sweep()
    for _ in range(2):
        assert farm.lease() is not None
        farm.now += 61.0
        farm.restart()
        farm.sweep()
    assert Outcome.DEVICE_LOST in {trial.outcome for trial in farm.trials()}


# Takes a boot's id, and the seconds by which the clock is ahead of the last boot's.
Boot = Callable[[str, float], None]


@pytest.fixture
def boot(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> Boot:
    """Start the machine anew: its timer begins at 5 s."""

    def start(name: str, ahead_s: float) -> None:
        farm.now += 60.0 + ahead_s
        farm.clock_set_s = farm.now - 5.0
        monkeypatch.setattr(clock_watch, "boot_id", lambda: name)
        farm.restart()
        farm.sweep()

    farm.now = 1000 * DAY_S
    start("first", 0.0)
    return start


class TestBoot:
    """A machine boots with a wrong clock, which is corrected later."""

    @pytest.mark.parametrize("boots", [1, 3])
    def test_a_clock_far_ahead_makes_nothing_old(self, farm: Farm, boot: Boot, boots: int) -> None:
        farm.plug_in()
        with farm.database.begin() as session:
            sha = blobs.put(session, b"uploaded a moment ago")
            models.add(session, sha, "net", farm.now)
            access.append_audit(
                session, {AuditEntry("t1", "POST /v1/jobs", "", "202", "10.0.0.7"): 1}, farm.now
            )

        def are_stored() -> bool:
            with farm.database.begin() as session:
                others = access.audit(session, 10), workers.list_workers(session)
                return blobs.size(session, sha) is not None and all(others)

        farm.sweep()
        uptime_s = 0.0
        for number in range(boots):
            boot(f"wrong {number}", 10 * 365 * DAY_S if number == 0 else 0.0)
            for _ in range(3):
                farm.now += INTERVAL_S
                uptime_s += INTERVAL_S
                farm.sweep()
                assert are_stored()
        farm.now += DOUBTFUL_JUMP_S - uptime_s + INTERVAL_S  # nobody has corrected it for a day
        farm.sweep()
        assert not are_stored()

    def test_no_device_is_blamed_for_a_clock_far_ahead(self, farm: Farm, boot: Boot) -> None:
        farm.submit()
        farm.plug_in()
        for number in range(3):
            farm.sweep()
            assert farm.lease() is not None
            boot(f"wrong {number}", 10 * DAY_S)
            assert {trial.attempts for trial in farm.trials()} == {0}

    def test_future_times_are_corrected_to_now(self, farm: Farm, boot: Boot) -> None:
        boot("wrong", 10 * 365 * DAY_S)
        farm.plug_in()
        made_at = farm.now
        token = Token("t1", "ci", frozenset({Scope.READ}), made_at, made_at + 90 * DAY_S)
        with farm.database.begin() as session:
            access.add_token(session, token, "digest")
            access.use_token(session, "digest", made_at)
            unused = blobs.put(session, b"never used")
            models.add(session, unused, "net", made_at)
        for name in ("first", "second"):
            farm.submit(name)
            farm.finish(name)
        # The clock is corrected, whether or not tunefarm sees the correction.
        for number, name in enumerate(("third", "fourth")):
            if number:
                boot("right", 0.0)
            else:
                jump(farm, -10 * 365 * DAY_S)
                farm.sweep()
            farm.plug_in()
            farm.submit(name)
            assert farm.finish(name).artifact_version == 3 + number
        model = farm.job("first").request.model_sha
        with farm.database.begin() as session:
            [found] = access.tokens(session)
            listed = [job.id for job in jobs.list_jobs(session, 10, None)]
            published = jobs.published(session, model, farm.device.key)
        assert listed == ["fourth", "third", "second", "first"]
        assert [job.id for job in published] == listed
        assert found.expires_at is not None
        assert found.expires_at <= farm.now + 90 * DAY_S
        assert found.last_used_at is not None
        assert found.last_used_at <= farm.now
        farm.now += DOUBTFUL_JUMP_S + deletion.UPLOAD_GRACE_S + INTERVAL_S
        farm.sweep()
        with farm.database.begin() as session:
            assert blobs.size(session, unused) is None
