"""What every step works with, made once per process and passed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from records.database import Database
from scheduler.memory import Memory
from scheduler.models import Models
from scheduler.relief import Relief
from scheduler.settings import Settings
from scheduler.spaces import Spaces
from scheduler.tidying import Tidier

if TYPE_CHECKING:
    from scheduler.learning import Lesson


@dataclass(frozen=True)
class Context:
    """`now` gives epoch seconds; `holder` names this scheduler in the claims of jobs; `wake` asks for a step.

    The rest only saves time: all of it can be made again from the database. `barren` holds, for jobs whose
    search found nothing new, the number of trials done by then; `lessons` the cost models of device classes.
    """

    settings: Settings
    database: Database
    now: Callable[[], float]
    holder: str
    wake: Callable[[str, str], None]
    spaces: Spaces = field(default_factory=Spaces)
    models: Models = field(default_factory=Models)
    memory: Memory = field(default_factory=Memory)
    lessons: dict[str, Lesson] = field(default_factory=dict)
    barren: dict[str, int] = field(default_factory=dict)
    relief: Relief = field(default_factory=Relief)
    tidier: Tidier = field(default_factory=Tidier)
