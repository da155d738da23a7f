"""Compress time: a service's waits of hours become minutes, while clocks run normally. Durations are divided
by one factor, but stay long enough for a loaded machine to call or start a process. Data kept for days is
kept for KEPT_HOURS, so that the soak sees its deletion.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

HOUR_S = 3600.0
KEPT_HOURS = 2.0
# Durations by the module that defines them, each with its lower limit.
DURATIONS: Mapping[str, Mapping[str, float]] = {
    "core.worker": {"LOST_AFTER_S": 4.0},
    "records.fleet.fair_queue": {"LEASE_S": 1.0},
    "records.fleet.leases": {"PACE_WINDOW_S": 1.0},
    "records.storage.database": {"_CLOCK_INTERVAL_S": 0.5, "_IDLE_LIMIT_S": 5.0},
    "records.access": {"LAST_USED_PRECISION_S": 1.0},
    "server.fleet.sessions": {"FORGET_S": 6.0, "MIN_INTERVAL_S": 0.2, "_MIN_LEASE_TTL_S": 3.0},
    "server.access.audit": {"FLUSH_S": 1.0, "DAILY_S": 1.0},
    "server.access.authentication": {"CACHE_S": 0.5},
    "scheduler.planning.record_cache": {"OVERLAP_S": 2.0, "STALE_S": 6.0},
    "scheduler.steps.attempts": {"FIRST_DELAY_S": 0.5},
    "scheduler.steps.waiting_messages": {"AWAY_AFTER_S": 3.0},
    "scheduler.upkeep.garbage_collection": {"INTERVAL_S": 1.0},
    "scheduler.upkeep.builder_fallback": {"PATIENCE_S": 5.0},
    "worker.agent.service": {"ANSWER_TIMEOUT_S": 3.0},
}
# How long unneeded data is kept.
RETENTIONS: Mapping[str, str] = {
    "records.jobs.deletion": "UPLOAD_GRACE_S",
    "scheduler.upkeep.garbage_collection": "WORKER_KEPT_S",
}
# The sizes of caches that otherwise would not fill up within the soak.
HISTORY, CACHED_RECORDS, LISTED = 500, 1000, 20
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "server": ("server.main",),
    "scheduler": ("scheduler.main", "scheduler.steps.celery_tasks", "scheduler.upkeep.sweep"),
    "worker": ("worker.main",),
}
_PACKAGES = ("core", "records", "server", "scheduler", "worker")


def settings(speed_up: float) -> dict[str, str]:
    """Return the settings that are durations, as environment variables."""
    return {
        "TUNEFARM_CLAIM_TTL_S": f"{max(60.0 / speed_up, 3.0):g}",
        "TUNEFARM_SWEEP_INTERVAL_S": f"{max(5.0 / speed_up, 0.5):g}",
        "TUNEFARM_WORKER_RECONNECT_MAX_S": f"{max(10.0 / speed_up, 1.0):g}",
        "TUNEFARM_AUDIT_DAYS": f"{KEPT_HOURS * HOUR_S / speed_up / 86400:.6f}",
    }


def compress(program: str, speed_up: float) -> None:
    """Shorten the durations of this process, which will be a server, a scheduler or a worker."""
    for name in PROGRAMS[program]:
        importlib.import_module(name)
    for home, durations in DURATIONS.items():
        for name, least_s in durations.items():
            _replace(home, name, lambda before, least_s=least_s: max(before / speed_up, least_s))
    for home, name in RETENTIONS.items():
        _replace(home, name, lambda _: KEPT_HOURS * HOUR_S / speed_up)
    if program == "scheduler":
        _replace("scheduler.learning.training", "HISTORY_LIMIT", lambda _: HISTORY)
        _replace("records.schedules.cost_models", "LISTED_VERSIONS", lambda _: LISTED)
        context: Any = sys.modules["scheduler.context"]
        context.RecordCache = partial(context.RecordCache, max_records=CACHED_RECORDS)
    if program != "worker":
        options = sys.modules["scheduler.app"]._REDIS_OPTIONS
        options |= {
            "visibility_timeout": max(options["visibility_timeout"] / speed_up, 20),
            "socket_timeout": 3,
        }


def _replace(home: str, name: str, change: Any) -> None:
    """Change a constant in all modules of this process, because modules copy imported constants."""
    if home not in sys.modules:
        return
    before = getattr(sys.modules[home], name)
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] in _PACKAGES and vars(module).get(name) == before:
            setattr(module, name, change(before))
