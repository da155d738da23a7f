"""Deliver webhook messages from separate threads, so that a slow receiver delays no step."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from core.webhook import sign
from records import webhooks
from records.storage.database import StorageError
from scheduler.context import Context
from system.outbound import Network, OutboundError, parse_networks, post

# Messages sent in parallel, and messages that wait for a thread. A later sweep finds the others.
THREADS = 4
MAX_WAITING = 100
TIMEOUT_S = 10.0
# How long ended deliveries are listed.
KEPT_S = 7 * 86400.0

log = logging.getLogger(__name__)


class Deliverer:
    """The deliveries of one scheduler. Several schedulers may deliver at the same time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._allowed = parse_networks(context.settings.webhook_allow)
        self._threads = ThreadPoolExecutor(THREADS, "webhooks")
        self._lock = threading.Lock()
        self._taken: set[int] = set()

    def start(self, delivery_id: int) -> None:
        """Queue a delivery for a thread, unless it is already queued or too many wait."""
        with self._lock:
            if delivery_id in self._taken or len(self._taken) >= MAX_WAITING:
                return
            self._taken.add(delivery_id)
        self._threads.submit(self._attempt, delivery_id)

    def stop(self) -> None:
        """Wait for running attempts, and drop the others."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _attempt(self, delivery_id: int) -> None:
        try:
            attempt(self._context, delivery_id, self._allowed)
        except StorageError as error:
            log.error("webhook message %s will be tried again: %s", delivery_id, error)
        except Exception:
            log.exception("webhook message %s will be tried again", delivery_id)
        finally:
            with self._lock:
                self._taken.discard(delivery_id)


def attempt(context: Context, delivery_id: int, allowed: Sequence[Network]) -> None:
    """Send a message once if it is due, and store the result. Raises StorageError."""
    with context.database.begin() as session:
        delivery = webhooks.begin_attempt(session, delivery_id, context.now())
    if delivery is None:
        return
    body, timestamp = delivery.body.encode(), int(context.now())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "tunefarm",
        "webhook-id": delivery.message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(delivery.webhook.secret, delivery.message_id, timestamp, body),
    }
    status, error = None, ""
    try:
        status = post(delivery.webhook.url, body, headers, allowed, TIMEOUT_S)
        if not 200 <= status < 300:
            why = "redirects aren't followed" if 300 <= status < 400 else "only 200 to 299 mean success"
            error = f"the receiver answered {status}: {why}"
    except OutboundError as failure:
        error = str(failure)
    if error:
        log.warning("webhook message %s was not delivered: %s", delivery.message_id, error)
    with context.database.begin() as session:
        webhooks.end_attempt(session, delivery, status, error, context.now())
