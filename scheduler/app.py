"""The Celery application, and the wake-ups: the only thing that other processes ask of the scheduler.

Celery carries wake-ups, the database the truth: a message says which job to look at, never what is so.
A lost message costs a few seconds, until the sweep; a message too many costs one look.
"""

from __future__ import annotations

import logging
import threading
from functools import cache
from pathlib import Path
from queue import Full, Queue
from typing import Any

from celery import Celery
from kombu.exceptions import KombuError
from kombu.transport import TRANSPORT_ALIASES

QUEUE = "tunefarm"
POLLING_INTERVAL_S = 0.05
SCHEMES = ("redis", "rediss")

TRANSPORT_ALIASES["folder"] = "scheduler.folder_broker:Transport"

log = logging.getLogger(__name__)

_MAX_UNSENT = 1000
_REDIS_OPTIONS = {
    # Sending fails at once while Redis is away; the consumer has settings of its own and tries for ever.
    "max_retries": 0,
    "socket_connect_timeout": 3,
    # A Redis that vanished without a word must not keep anybody waiting; kombu asks it every second anyway.
    "socket_timeout": 10,
    "socket_keepalive": True,
    # A message that a scheduler took with it when it was killed comes back after so many seconds. No step
    # takes that long, and one that did would be taken twice, which changes nothing.
    "visibility_timeout": 3600,
}


@cache
def make_app(broker: str) -> Celery:
    """The application over a broker's folder or URL.

    Raises OSError when the folder can't be made, ValueError for a URL of a broker that is not known.
    """
    app = Celery("tunefarm", set_as_current=False)
    app.conf.update(
        **_broker_settings(broker),
        task_default_queue=QUEUE,
        # Straight to the queue: a named exchange would keep a table of bindings in a file, with races.
        task_default_exchange="",
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_publish_retry=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_redirect_stdouts=False,
    )
    return app


class Waker:
    """Asks the scheduler to look at a job soon: `intake`, `plan` or `publish`.

    Sends from a thread of its own, so that no request ever waits for a broker, and never raises for one that
    is away: the sweep finds the job all the same.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._unsent: Queue[tuple[str, str]] = Queue(_MAX_UNSENT)
        threading.Thread(target=self._send_for_ever, name="wake-ups", daemon=True).start()

    def __call__(self, step: str, job_id: str) -> None:
        try:
            self._unsent.put_nowait((step, job_id))
        except Full:
            log.warning("no wake-up for %s of %s, the next sweep will find it: too many wait", step, job_id)

    def _send_for_ever(self) -> None:
        while True:
            step, job_id = self._unsent.get()
            try:
                send(self._app, step, job_id)
            except (KombuError, OSError) as error:
                log.warning("no wake-up for %s of %s, the next sweep will find it: %s", step, job_id, error)
            except Exception:
                log.exception("no wake-up for %s of %s, the next sweep will find it", step, job_id)


def send(app: Celery, step: str, *args: str, expires_s: float | None = None) -> None:
    """Raises kombu's errors or OSError when the broker can't be reached."""
    app.send_task(f"scheduler.{step}", args=list(args), expires=expires_s, ignore_result=True)


def _broker_settings(broker: str) -> dict[str, Any]:
    scheme, is_url, _ = broker.partition("://")
    if not is_url:
        return _folder_settings(Path(broker).absolute())
    if scheme not in SCHEMES:
        raise ValueError(f"TUNEFARM_BROKER is a folder or a redis:// or rediss:// URL, not {scheme}://")
    return {"broker_url": broker, "broker_transport_options": dict(_REDIS_OPTIONS)}


def _folder_settings(folder: Path) -> dict[str, Any]:
    (folder / "control").mkdir(parents=True, exist_ok=True)
    return {
        "broker_url": "folder://localhost//",
        "broker_transport_options": {
            "data_folder_in": str(folder),
            "data_folder_out": str(folder),
            "control_folder": str(folder / "control"),
            "polling_interval": POLLING_INTERVAL_S,
        },
    }
