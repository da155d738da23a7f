"""Claims on jobs: only one scheduler at a time runs a job's step.

A claim lapses within a minute, so other schedulers soon continue the jobs of a dead host. But a step may take
longer (a compilation up to twenty minutes), so a thread renews the claim while the step runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from records.jobs import jobs
from records.storage.database import StorageError
from scheduler.context import Context

# Renewals per lifetime of a claim. There are several, because the database may be unavailable for a while.
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
        # A renewal after the release doesn't revive the claim, but may wait for the database.
        thread.join(1.0)


def _renew_until(context: Context, job_id: str, is_over: threading.Event) -> None:
    ttl_s, name = context.settings.claim_ttl_s, context.scheduler_name
    while not is_over.wait(ttl_s / RENEWALS_PER_TTL):
        try:
            with context.database.begin() as session:
                if not jobs.renew_claim(session, job_id, name, context.now(), ttl_s):
                    # Steps are idempotent, so two schedulers may run the same one.
                    log.warning("the claim on job %s has passed to another scheduler", job_id)
                    return
        except StorageError as error:
            log.error("the claim on job %s can't be renewed now: %s", job_id, error)
