"""The Celery application, and `wake`: the only thing that other processes ask of the scheduler.

Celery carries wake-ups, the database the truth: a message says which job to look at, never what is so.
A lost message costs a few seconds, until the sweep; a message too many costs one look.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

from celery import Celery
from kombu.exceptions import KombuError
from kombu.transport import TRANSPORT_ALIASES

from scheduler.settings import BrokerSettings

QUEUE = "tunefarm"
POLLING_INTERVAL_S = 0.05

TRANSPORT_ALIASES["folder"] = "scheduler.folder_broker:Transport"

log = logging.getLogger(__name__)


@cache
def make_app(broker: str) -> Celery:
    """The application over a broker's folder or URL. Raises OSError when the folder can't be made."""
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
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_redirect_stdouts=False,
    )
    return app


@cache
def default_app() -> Celery:
    """The application of this process's environment. Raises ValueError when `TUNEFARM_BROKER` is unset."""
    return make_app(BrokerSettings().broker)


def wake(step: str, job_id: str) -> None:
    """Ask the scheduler to look at a job soon: `intake`, `plan`, `publish` (or `import_records`).

    Never raises for a broker that is away: the sweep finds the job all the same.
    """
    try:
        send(default_app(), step, job_id)
    except (KombuError, OSError) as error:
        log.warning("no wake-up for %s of %s, the next sweep will find it: %s", step, job_id, error)


def send(app: Celery, step: str, *args: str, expires_s: float | None = None) -> None:
    """Raises kombu's errors or OSError when the broker can't be reached."""
    app.send_task(f"scheduler.{step}", args=list(args), expires=expires_s, ignore_result=True)


def _broker_settings(broker: str) -> dict[str, Any]:
    if "://" in broker:
        return {"broker_url": broker}
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
