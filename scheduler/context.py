"""The objects that all steps of one scheduler process share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cachetools import LRUCache
from sqlalchemy.orm import Session

from core.device import Device
from records.fleet import module_runs
from records.storage.database import Database
from scheduler.learning.training import Trainer
from scheduler.metrics import SchedulerMetrics
from scheduler.model_compiler import CompilerChildren, ModelCompiler
from scheduler.planning.lookahead import Lookahead
from scheduler.planning.record_cache import RecordCache
from scheduler.planning.trial_cache import TrialCache
from scheduler.settings import SchedulerSettings
from scheduler.spaces import Spaces
from system.signing import SigningKey

# Bounds the jobs noted here, because another scheduler may end them.
MAX_JOBS = 1000


@dataclass(frozen=True)
class EnoughTrials:
    """The jobs of a group whose open trials were enough for `lookahead` at `seen_at`, so no round was due."""

    job_ids: tuple[str, ...]
    lookahead: Lookahead
    seen_at: float


@dataclass
class Context:
    """The settings, database and caches of a scheduler's process. `now` returns epoch seconds, `wake` sends a
    wake-up for a job's step, and `scheduler_name` is the holder of claims. The caches only save time, and can
    be rebuilt from the database. `exhausted_at` maps ids of jobs whose search proposed nothing new to the
    number of trials done at that time, `enough_trials` ids of jobs that plan rounds to the last look that
    found no round due, `planning_s` their ids to the seconds that their last round took, `tvmscripts_at` ids
    of jobs to the time at which their TVMScripts were last stored. `signing_key` signs published artifacts,
    if it is set.
    """

    settings: SchedulerSettings
    database: Database
    now: Callable[[], float]
    scheduler_name: str
    wake: Callable[[str, str], None]
    metrics: SchedulerMetrics = field(default_factory=SchedulerMetrics)
    children: CompilerChildren = field(default_factory=CompilerChildren)
    signing_key: SigningKey | None = None

    def __post_init__(self) -> None:
        self.spaces = Spaces(self.database)
        self.model_compiler = ModelCompiler(self.database, self.children)
        self.record_cache = RecordCache()
        self.trial_cache = TrialCache()
        self.trainer = Trainer(self.database, self.spaces, self.now, self.settings.batch_size)
        self.exhausted_at: LRUCache[str, int] = LRUCache(MAX_JOBS)
        self.enough_trials: LRUCache[str, EnoughTrials] = LRUCache(MAX_JOBS)
        self.planning_s: LRUCache[str, float] = LRUCache(MAX_JOBS)
        self.tvmscripts_at: LRUCache[str, float] = LRUCache(MAX_JOBS)

    def must_not_disturb(self, session: Session, device: Device) -> bool:
        """Return whether a device on this scheduler's cores times a model. Other work would slow it down."""
        return not self.settings.batches_ahead(device) and module_runs.has_open(session, device.key)
