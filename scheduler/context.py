"""The objects that all steps of one scheduler process share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cachetools import LRUCache

from records.storage.database import Database
from scheduler.learning.training import Trainer
from scheduler.metrics import SchedulerMetrics
from scheduler.model_compiler import CompilerChildren, ModelCompiler
from scheduler.planning.record_cache import RecordCache
from scheduler.settings import SchedulerSettings
from scheduler.spaces import Spaces
from system.signing import SigningKey

# Another scheduler may end a job that this one has noted.
MAX_EXHAUSTED = 1000


@dataclass
class Context:
    """The settings, the database and the caches of a scheduler's process.

    `now` returns epoch seconds, `wake` asks for a step of a job, and `scheduler_name` holds the claims on
    jobs. The caches only save time: all of them can be built again from the database. `exhausted_at` maps
    the ids of jobs whose search proposed nothing new to the number of trials that were done by then.
    `signing_key` signs published artifacts, where one is set.
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
        self.trainer = Trainer(self.database, self.spaces, self.now, self.settings.batch_size)
        self.exhausted_at: LRUCache[str, int] = LRUCache(MAX_EXHAUSTED)
