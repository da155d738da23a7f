"""Claims on jobs: one scheduler at a time takes a step of a job.

A claim lapses within a minute, so that the jobs of a scheduler that died with its host are soon taken up. But
a step may take longer: a compilation has twenty minutes. So a thread renews the claim while the step runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from records.jobs import jobs
from records.storage.database import StorageError
from scheduler.context import Context

# A claim is renewed several times before it would lapse, because the database may be away now and then.
RENEWALS_PER_TTL = 4

log = logging.getLogger(__name__)


@contextmanager
def renewed(context: Context, job_id: str) -> Iterator[None]:
    """Renew this scheduler's claim on a job until the context ends."""
    is_over = threading.Event()
    arguments = context, job_id, is_over
    thread = threading.Thread(target=_renew_until, args=arguments, name="claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        # A renewal after the release would not revive the claim, but may wait for the database.
        thread.join(1.0)


def _renew_until(context: Context, job_id: str, is_over: threading.Event) -> None:
    ttl_s, name = context.settings.claim_ttl_s, context.scheduler_name
    while not is_over.wait(ttl_s / RENEWALS_PER_TTL):
        try:
            with context.database.begin() as session:
                if not jobs.renew_claim(session, job_id, name, context.now(), ttl_s):
                    # What both schedulers store is stored once: steps are safe to run twice.
                    log.warning("the claim on job %s has passed to another scheduler", job_id)
                    return
        except StorageError as error:
            log.error("the claim on job %s can't be renewed now: %s", job_id, error)
