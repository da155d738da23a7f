from __future__ import annotations

from core.lease import LeaseId
from core.measurement import Measurement, Outcome
from proto.messages import MAX_RESULTS
from worker.agent.outbox import Outbox

LEASE = LeaseId("lease", 1)
FAILED = Measurement(Outcome.RUN_ERROR, error="no")


def filled(count: int) -> Outbox:
    outbox = Outbox()
    for trial_id in range(count):
        outbox.add_trial(LEASE, trial_id, FAILED)
    return outbox


def test_results_wait_in_order_until_acknowledged() -> None:
    outbox = filled(4)
    numbers = [result.number for result in outbox.pending()]
    outbox.acknowledge([numbers[2], numbers[0]])
    assert [result.trial_id for result in outbox.pending()] == [1, 3]
    outbox.acknowledge([numbers[0], 999])
    assert len(outbox) == 2


def test_result_numbers_are_not_reused() -> None:
    outbox = filled(2)
    old = {result.number for result in outbox.pending()}
    outbox.acknowledge(old)
    outbox.add_module_run(LEASE, 7, FAILED)
    (result,) = outbox.pending()
    assert result.module_run_id == 7
    assert result.number not in old


def test_a_report_has_the_oldest_results_up_to_the_protocols_limit() -> None:
    outbox = filled(MAX_RESULTS + 5)
    first = outbox.pending()
    assert len(first) == MAX_RESULTS
    outbox.acknowledge(result.number for result in first)
    assert [result.trial_id for result in outbox.pending()] == list(range(MAX_RESULTS, MAX_RESULTS + 5))


def test_the_outbox_lists_the_results_of_a_lease() -> None:
    outbox = filled(2)
    outbox.add_trial(LeaseId("lease", 2), 9, FAILED)
    assert set(outbox.results_of(LEASE)) == {0, 1}
    assert outbox.results_of(LeaseId("lease", 2)) == {9: FAILED}
