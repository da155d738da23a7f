"""The scheduler's process: a Celery worker that runs one step at a time; a thread asks for sweeps."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.exceptions import SecurityWarning

from core.exit_code import ExitCode
from records.storage.database import Database, StorageError
from scheduler.app import Waker, make_app, send
from scheduler.identity import unique_name
from scheduler.settings import SchedulerSettings
from system.command import CommandError, run_function
from system.settings import SettingsError, read_settings

log = logging.getLogger(__name__)


def scheduler() -> int:
    """Run the steps of jobs. Settings are environment variables, TUNEFARM_BROKER and
    TUNEFARM_DATABASE_URL at least.
    """
    settings = read_settings(SchedulerSettings, flags={})
    try:
        celery = make_app(settings.broker)
        database = Database(settings.database_url)
        database.migrate()
    except ValueError as error:
        raise SettingsError(str(error)) from error
    except (StorageError, OSError) as error:
        raise CommandError(str(error), ExitCode.LOCAL) from error
    with ExitStack() as stack:
        stack.callback(database.close)
        name = settings.scheduler_name or stack.enter_context(unique_name(database.name))
        return _work(celery, settings, database, name)


def main(arguments: Sequence[str] = ()) -> int:
    """Run until SIGTERM, then finish the current step. Return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("scheduler").setLevel(logging.INFO)
    return run_function(scheduler, "tunefarm scheduler", arguments)


def _work(celery: Celery, settings: SchedulerSettings, database: Database, name: str) -> int:
    """Run a Celery worker until it is stopped. Return its exit code."""
    # These load TVM, which takes seconds: after the settings were checked, before the first step.
    from scheduler.context import Context
    from scheduler.steps.celery_tasks import register

    register(celery, Context(settings, database, time.time, name, Waker(celery)))
    # Celery warns against root because pickled messages could run code; ours are JSON.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    signals.setup_logging.connect(_keep_logging)
    if settings.alive_file is not None:
        signals.task_postrun.connect(partial(_touch, settings.alive_file), weak=False)
    worker = celery.Worker(
        pool="solo",
        hostname=name,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    arguments = celery, settings.sweep_interval_s
    threading.Thread(target=_request_sweeps, args=arguments, name="sweeps", daemon=True).start()
    log.info("ready as %s", name)
    worker.start()
    return int(worker.exitcode or ExitCode.OK)


def _request_sweeps(celery: Celery, interval_s: float) -> None:
    """Send a message for a sweep at every interval, for ever.

    Celery's beat would do the same, but logs a stack trace for every message that it can't send.
    """
    is_away = False
    while True:
        try:
            # A sweep that waited behind a long step is not worth running when the next one is there.
            send(celery, "sweep", expires_s=interval_s)
            if is_away:
                log.info("the broker is back")
            is_away = False
        except Exception as error:  # sweeps go on, whatever the broker's library raises
            if not is_away:
                log.error("no sweeps while the broker is away: %s", error)
            is_away = True
        time.sleep(interval_s)


def _touch(file: Path, **_: Any) -> None:
    with suppress(OSError):  # the old age of the file tells whoever watches it
        file.touch()


def _keep_logging(**_: Any) -> None:
    """Celery sets up logging of its own unless a function is connected to this signal."""
