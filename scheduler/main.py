"""The scheduler's process: a Celery worker that takes one step at a time, and a clock that has it sweep."""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.exceptions import SecurityWarning

from records.storage.database import Database, StorageError
from scheduler.app import Waker, make_app, send
from scheduler.identity import identity
from scheduler.settings import SchedulerSettings
from system.settings import SettingsError, read_settings

log = logging.getLogger(__name__)

FAILED, USAGE = 1, 2


def main() -> int:
    """Run until SIGTERM, then finish the step in hand. Exit code 2: wrong settings, 1: no storage."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("scheduler").setLevel(logging.INFO)
    try:
        settings = read_settings(SchedulerSettings, flags={})
        app = make_app(settings.broker)
        database = Database(settings.database_url)
        database.migrate()
    except SettingsError as error:
        return _refuse(str(error), USAGE)
    except ValueError as error:
        return _refuse(f"wrong settings: {error}", USAGE)
    except (StorageError, OSError) as error:
        return _refuse(str(error), FAILED)
    with ExitStack() as held:
        held.callback(database.close)
        name = settings.scheduler_name or held.enter_context(identity(database.name))
        return _serve(app, settings, database, name)


def _serve(app: Celery, settings: SchedulerSettings, database: Database, name: str) -> int:
    # Loads TVM, which takes seconds: the first step finds it ready, a wrong setting does not cost them.
    from scheduler.context import Context
    from scheduler.steps.celery_tasks import register

    register(app, Context(settings, database, time.time, name, Waker(app)))
    # Celery warns against root because pickled messages could run code; ours are JSON.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    signals.setup_logging.connect(_keep_logging)
    if settings.alive_file is not None:
        signals.task_postrun.connect(partial(_note_life, settings.alive_file), weak=False)
    worker = app.Worker(
        pool="solo",
        hostname=name,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    clock = (app, settings.sweep_interval_s)
    threading.Thread(target=_sweep_for_ever, args=clock, name="clock", daemon=True).start()
    log.info("ready as %s", name)
    worker.start()
    return int(worker.exitcode or 0)


def _sweep_for_ever(app: Celery, interval_s: float) -> None:
    is_away = False
    while True:
        try:
            # A sweep that waited behind a long step is not worth running when the next one is there.
            send(app, "sweep", expires_s=interval_s)
            if is_away:
                log.info("the broker is back")
            is_away = False
        except Exception as error:  # the clock goes on, whatever the broker's library raises
            if not is_away:
                log.error("no sweeps while the broker is away: %s", error)
            is_away = True
        time.sleep(interval_s)


def _note_life(file: Path, **_: Any) -> None:
    """Where that fails, the age of the file says so."""
    with suppress(OSError):
        file.touch()


def _keep_logging(**_: Any) -> None:
    """Celery sets up logging of its own unless somebody answers this signal."""


def _refuse(sentence: str, code: int) -> int:
    print(f"scheduler: {sentence}", file=sys.stderr)
    return code
