"""The scheduler's process: a Celery worker that runs one step at a time. Threads import models and sweep."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery, signals
from celery.exceptions import SecurityWarning
from prometheus_client import start_http_server

from core.exit_code import ExitCode
from records.storage.blob_store import BlobStore
from records.storage.database import Database, StorageError
from scheduler.app import Waker, make_app, send
from scheduler.identity import unique_name
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings
from system import logs, tracing
from system.command import CommandError, run_function
from system.errors import SettingsError
from system.scratch import scratch_folder
from system.settings import read_settings
from system.signing import SigningKey, read_key

if TYPE_CHECKING:
    from scheduler.upkeep.sweep import Sweeper

log = logging.getLogger(__name__)


def scheduler() -> int:
    """Run the steps of jobs. Settings are environment variables, TUNEFARM_BROKER and
    TUNEFARM_DATABASE_URL at least.
    """
    settings = read_settings(SchedulerSettings, flags={})
    signing_key = None if settings.signing_key is None else read_key(settings.signing_key)
    try:
        celery = make_app(settings.broker)
        store = None if settings.blob_store is None else BlobStore(settings.blob_store)
        database = Database(settings.database_url, blob_store=store)
        database.migrate()
    except ValueError as error:
        raise SettingsError(str(error)) from error
    except (StorageError, OSError) as error:
        raise CommandError(str(error), ExitCode.LOCAL) from error
    with ExitStack() as stack:
        stack.callback(database.close)
        stack.enter_context(scratch_folder("scheduler"))
        stack.enter_context(tracing.exported("scheduler"))
        name = settings.scheduler_name or stack.enter_context(unique_name(database.name))
        return _work(celery, settings, database, name, signing_key)


def main(arguments: Sequence[str] = ()) -> int:
    """Run until SIGTERM, then finish the current step. Return the exit code."""
    logs.configure(logging.WARNING)
    logging.getLogger("scheduler").setLevel(logging.INFO)
    return run_function(scheduler, "tunefarm scheduler", arguments)


def _work(
    celery: Celery,
    settings: SchedulerSettings,
    database: Database,
    name: str,
    signing_key: SigningKey | None,
) -> int:
    """Run a Celery worker until it is stopped. Return its exit code."""
    # These modules load TVM, which takes seconds, so import them after the settings are checked.
    from scheduler.context import Context
    from scheduler.steps.celery_tasks import register
    from scheduler.steps.long_steps import LONG_STEPS, LongStep
    from scheduler.upkeep.outlines import OutlineReader
    from scheduler.upkeep.sweep import Sweeper
    from scheduler.upkeep.webhook_deliveries import Deliverer

    context = Context(settings, database, database.now, name, Waker(celery), signing_key=signing_key)
    outline_reader = OutlineReader(context)
    sweeper = Sweeper(context, outline_reader)
    if settings.metrics_port is not None:
        serve_metrics(sweeper.context.metrics, settings.metrics_host, settings.metrics_port)
    long_steps, deliverer = {name: LongStep(context, name) for name in LONG_STEPS}, Deliverer(context)
    register(celery, context, long_steps, deliverer, outline_reader)
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
    is_stopping = threading.Event()
    arguments = celery, sweeper, settings.sweep_interval_s, is_stopping
    sweeps = threading.Thread(target=_sweep_until, args=arguments, name="sweeps", daemon=True)
    sweeps.start()
    log.info("ready as %s", name)
    worker.start()
    is_stopping.set()
    for step in long_steps.values():
        step.stop()
    deliverer.stop()
    outline_reader.stop()
    # A sweep without a database ends without a result.
    sweeps.join(5.0)
    return int(worker.exitcode or ExitCode.OK)


def serve_metrics(metrics: SchedulerMetrics, host: str, port: int) -> None:
    """Serve the metrics from a thread. Raises CommandError."""
    try:
        start_http_server(port, host, metrics.registry)
    except OSError as error:
        cause = f"can't listen on {host} port {port} ({error.strerror})"
        mend = "set TUNEFARM_METRICS_PORT to a free port"
        raise CommandError(f"{cause}: {mend}", ExitCode.LOCAL) from error
    log.info("metrics are at http://%s:%s/metrics", host, port)


def _sweep_until(celery: Celery, sweeper: Sweeper, interval_s: float, is_stopping: threading.Event) -> None:
    """At every interval, run repairs and send the message that wakes all jobs. Celery's beat could send it,
    but logs a stack trace for every message that it can't send.
    """
    is_away = False
    while not is_stopping.is_set():
        try:
            sweeper.repair()
        except Exception:
            log.exception("a sweep failed; the next one begins anew")
        try:
            # A message that waited behind a long step expires when the next one arrives.
            send(celery, "wake_jobs", expires_s=interval_s)
            if is_away:
                log.info("the broker is back")
            is_away = False
        except Exception as error:  # sweeps continue after any exception of the broker's library
            if not is_away:
                log.error("no job is woken while the broker is away: %s", error)
            is_away = True
        is_stopping.wait(interval_s)


def _touch(file: Path, **_: Any) -> None:
    with suppress(OSError):  # the file's age shows watchers that this process hangs
        file.touch()


def _keep_logging(**_: Any) -> None:
    """Celery configures logging itself unless a function is connected to this signal."""
