"""Deliver webhook messages from separate threads, so that a slow receiver delays no step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from core.webhook import sign
from records import webhooks
from scheduler.context import Context
from scheduler.upkeep.background_queue import BackgroundQueue
from system.outbound import Network, OutboundError, parse_networks, post

# Messages sent in parallel, and messages that wait for a thread. A later sweep finds the others.
THREADS = 4
MAX_WAITING = 100
TIMEOUT_S = 10.0
# How long ended deliveries are listed.
KEPT_S = 7 * 86400.0

log = logging.getLogger(__name__)


class Deliverer(BackgroundQueue[int]):
    """Sends the messages of deliveries, by their ids."""

    def __init__(self, context: Context) -> None:
        allowed = parse_networks(context.settings.webhook_allow)
        super().__init__(
            "webhooks",
            partial(attempt, context, allowed=allowed),
            threads=THREADS,
            max_waiting=MAX_WAITING,
            log=log,
            retried="webhook message %s will be tried again",
        )


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
