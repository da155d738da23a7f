"""The scheduler's process: a Celery worker that takes one step at a time, and a clock that has it sweep."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from typing import Any

from celery import Celery, signals
from celery.beat import EmbeddedService
from celery.exceptions import SecurityWarning
from pydantic import ValidationError

from records.database import Database, StorageError
from scheduler.app import default_app, wake
from scheduler.settings import Settings

log = logging.getLogger(__name__)

FAILED, USAGE = 1, 2


def main() -> int:
    """Run until SIGTERM, then finish the step in hand. Exit code 2: wrong settings, 1: no storage."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("scheduler").setLevel(logging.INFO)
    try:
        settings = Settings()
        app = default_app()
        database = Database(settings.database_url)
        database.migrate()
    except ValidationError as error:
        return _refuse(_settings_sentence(error), USAGE)
    except (StorageError, OSError) as error:
        return _refuse(str(error), FAILED)
    try:
        return _serve(app, settings, database)
    finally:
        database.close()


def _serve(app: Celery, settings: Settings, database: Database) -> int:
    # Loads TVM, which takes seconds: the first step finds it ready, a wrong setting does not cost them.
    from scheduler.context import Context
    from scheduler.steps import register

    register(app, Context(settings, database, time.time, settings.scheduler_name, wake))
    # Celery warns against root because pickled messages could run code; ours are JSON.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    signals.setup_logging.connect(_keep_logging)
    worker = app.Worker(
        pool="solo",
        hostname=settings.scheduler_name,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    EmbeddedService(app, thread=True, scheduler_cls="celery.beat:Scheduler").start()
    log.info("ready")
    worker.start()
    return int(worker.exitcode or 0)


def _keep_logging(**_: Any) -> None:
    """Celery sets up logging of its own unless somebody answers this signal."""


def _settings_sentence(error: ValidationError) -> str:
    problems = (f"TUNEFARM_{str(part['loc'][-1]).upper()}: {part['msg']}" for part in error.errors())
    return "wrong settings: " + "; ".join(problems)


def _refuse(sentence: str, code: int) -> int:
    print(f"scheduler: {sentence}", file=sys.stderr)
    return code
