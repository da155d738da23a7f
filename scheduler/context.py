"""What every step works with, made once per process and passed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from records.storage.database import Database
from scheduler.learning.record_cache import RecordCache
from scheduler.models import Models
from scheduler.planning.spaces import Spaces
from scheduler.settings import SchedulerSettings
from scheduler.upkeep.builder_fallback import BuilderFallback
from scheduler.upkeep.garbage_collection import GarbageCollector

if TYPE_CHECKING:
    from scheduler.learning.training import TrainedModel


@dataclass(frozen=True)
class Context:
    """`now` gives epoch seconds; `holder` names this scheduler in the claims of jobs; `wake` asks for a step.

    The rest only saves time: all of it can be made again from the database. `barren` holds, for jobs whose
    search found nothing new, the number of trials done by then; `lessons` the cost models of device classes.
    """

    settings: SchedulerSettings
    database: Database
    now: Callable[[], float]
    holder: str
    wake: Callable[[str, str], None]
    spaces: Spaces = field(default_factory=Spaces)
    models: Models = field(default_factory=Models)
    memory: RecordCache = field(default_factory=RecordCache)
    lessons: dict[str, TrainedModel] = field(default_factory=dict)
    barren: dict[str, int] = field(default_factory=dict)
    relief: BuilderFallback = field(default_factory=BuilderFallback)
    tidier: GarbageCollector = field(default_factory=GarbageCollector)
