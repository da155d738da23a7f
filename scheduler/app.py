"""The Celery application, and the wake-ups that other processes send to the scheduler.

The database holds the truth. A wake-up only names a step and a job. A lost wake-up costs a few seconds, until
the next sweep. A superfluous one costs a query.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path
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
_INTERVAL_S = 0.2
_REDIS_OPTIONS = {
    # Sending fails at once while Redis is unavailable. The consumer's settings make it retry for ever.
    "max_retries": 0,
    "socket_connect_timeout": 3,
    # The longest wait for a Redis that vanished without closing its connection. kombu polls every second.
    "socket_timeout": 10,
    "socket_keepalive": True,
    # Seconds after which Redis redelivers a message that a killed scheduler had received. A step that takes
    # longer runs twice, which is harmless.
    "visibility_timeout": 3600,
}


@cache
def make_app(broker: str) -> Celery:
    """Return the Celery application for a broker, given as a folder or a URL. Raises OSError if the folder
    can't be created; ValueError for an unknown kind of broker, or without Redis's client.
    """
    app = Celery("tunefarm", set_as_current=False)
    app.conf.update(
        **_broker_settings(broker),
        task_default_queue=QUEUE,
        # kombu's filesystem transport has a race in the file of a named exchange's bindings.
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
    """Asks the scheduler to look at a job soon: `intake`, `round` or `publish`.

    A separate thread sends the wake-ups, so no request waits for the broker. If the broker is unavailable,
    nothing is raised, because the next sweep finds the job anyway. Calls that ask for the same within
    _INTERVAL_S become one message: a hundred workers that return leases need one round.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        # A set in the order of the calls.
        self._unsent: dict[tuple[str, str], None] = {}
        self._has_unsent = threading.Condition()
        threading.Thread(target=self._send_for_ever, name="wake-ups", daemon=True).start()

    def __call__(self, step: str, job_id: str) -> None:
        with self._has_unsent:
            is_full = len(self._unsent) >= _MAX_UNSENT and (step, job_id) not in self._unsent
            if not is_full:
                self._unsent[step, job_id] = None
                self._has_unsent.notify()
        if is_full:
            log.warning("no wake-up for %s of %s, the next sweep will find it: too many wait", step, job_id)

    def _send_for_ever(self) -> None:
        while True:
            with self._has_unsent:
                self._has_unsent.wait_for(lambda: self._unsent)
                # Replaced before sending, so that a later call sends a later message.
                unsent, self._unsent = self._unsent, {}
            for step, job_id in unsent:
                self._send(step, job_id)
            time.sleep(_INTERVAL_S)

    def _send(self, step: str, job_id: str) -> None:
        try:
            send(self._app, step, job_id)
        except (KombuError, OSError) as error:
            log.warning("no wake-up for %s of %s, the next sweep will find it: %s", step, job_id, error)
        except Exception:
            log.exception("no wake-up for %s of %s, the next sweep will find it", step, job_id)


def send(app: Celery, step: str, *args: str, expires_s: float | None = None) -> None:
    """Send a step's message. Raises OSError or an exception of kombu's if the broker can't be reached."""
    app.send_task(f"scheduler.{step}", args=list(args), expires=expires_s, ignore_result=True)


def _broker_settings(broker: str) -> dict[str, Any]:
    scheme, is_url, _ = broker.partition("://")
    if is_url:
        if scheme not in SCHEMES:
            raise ValueError(f"TUNEFARM_BROKER is a folder or a redis:// or rediss:// URL, not {scheme}://")
        if find_spec("redis") is None:
            # kombu would fail at the first connection, with an AttributeError.
            raise ValueError(
                "TUNEFARM_BROKER is Redis, whose client isn't installed: pip install 'tunefarm[redis]'"
            )
        return {"broker_url": broker, "broker_transport_options": dict(_REDIS_OPTIONS)}
    folder = Path(broker).absolute()
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
