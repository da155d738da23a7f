"""The cost model of a device class, trained on what all jobs have measured there.

Every training is stored as a version, so that a scheduler that starts again goes on with the newest one.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core.device import Device
from records.schedules import cost_models, schedules
from records.schedules.cost_models import Version
from records.schedules.schedules import Record
from scheduler.context import Context
from scheduler.learning.evaluation import Example, evaluate
from search.cost.model import ASSUMED, CostModel
from search.policy import train

# Reading and describing more takes too long; the newest teach the most about what is searched now.
HISTORY_LIMIT = 5_000
# While training took less than this part of the time, any news are learned at once; ...
CHEAP_SHARE = 0.03
# ... while it took less than this one, when there are so many times as many records as at the last training.
MOST_SHARE = 0.06
GROWTH = 0.05
# Records are held out, and a second model is trained without them, when there are so many times as many.
EVALUATION_GROWTH = 1.5
MIN_EVALUATED = 100

log = logging.getLogger(__name__)


@dataclass
class TrainedModel:
    """What this process knows of a class's cost model: trained on so many `records`, those up to the id
    `newest_id`; `evaluated` of them when metrics were last worked out. It began with the class at `began_at`
    and has spent `spent_s` seconds on training since. It holds for the profile of this `digest`: under
    another, the estimates that it corrects are others."""

    began_at: float
    model: CostModel
    records: int = 0
    newest_id: int = 0
    evaluated: int = 0
    spent_s: float = 0.0
    digest: str = ASSUMED

    @property
    def is_learned(self) -> bool:
        return self.model.is_learned

    def notice_clock(self, now: float) -> None:
        """One that was set back tells nothing of the time that has passed: begins anew."""
        if now < self.began_at:
            self.began_at, self.spent_s = now, 0.0

    def is_due(self, news: int, now: float, batch_size: int) -> bool:
        """Whether to train again after so many new records, so that training costs next to nothing."""
        elapsed_s = max(now - self.began_at, 0.0)
        if news == 0:
            return False
        if self.spent_s <= CHEAP_SHARE * elapsed_s:
            return True
        return news >= max(batch_size, GROWTH * self.records) and self.spent_s <= MOST_SHARE * elapsed_s


def lesson(context: Context, device: Device) -> TrainedModel:
    """The class's model, trained again first if that is due; the last one when training fails."""
    found = context.lessons.get(device.key)
    if found is None or found.digest != _digest(device):
        found = context.lessons[device.key] = _resumed(context, device)
    found.notice_clock(context.now())
    with context.database.begin() as session:
        news = schedules.count_after(session, device.key, found.newest_id)
    if found.is_due(news, context.now(), context.settings.batch_size):
        _learn(context, device, found)
    return found


def _resumed(context: Context, device: Device) -> TrainedModel:
    """Begins with the newest version stored, if it is one of this search's features and this profile."""
    found = TrainedModel(context.now(), CostModel(), digest=_digest(device))
    with context.database.begin() as session:
        stored = cost_models.newest(session, device.key)
    if stored is None:
        return found
    version, data = stored
    try:
        found.model = CostModel.from_bytes(data, found.digest)
    except ValueError as error:
        log.warning("the last cost model of class %s can't be used: %s", device.key, error)
        return found
    found.records = version.records
    with context.database.begin() as session:
        found.newest_id = schedules.last_until(session, device.key, version.newest_record_at)
    # As if this process had trained it: it isn't due again at once.
    found.spent_s = version.train_secs
    return found


def _learn(context: Context, device: Device, found: TrainedModel) -> None:
    began = context.now()
    with context.database.begin() as session:
        found.newest_id, newest_at = schedules.newest(session, device.key)
        history = schedules.history(session, device.key, HISTORY_LIMIT)
    examples = _examples(context, device, history)
    try:
        model = train([example.sample for example in examples])
    except Exception:
        # Whatever the learner stumbles over must not stop a job: there is still the model before.
        log.exception("the cost model of class %s can't be trained: the last one stays", device.key)
        found.spent_s += max(context.now() - began, 0.0)
        return
    found.model, found.records = model, len(examples)
    train_secs = max(context.now() - began, 0.0)
    metrics = _metrics(found, device, examples)
    found.spent_s += max(context.now() - began, 0.0)
    if found.is_learned:
        version = Version(device.key, found.records, newest_at, context.now(), train_secs, metrics)
        with context.database.begin() as session:
            cost_models.add(session, version, model.to_bytes(found.digest))


def _digest(device: Device) -> str:
    """Of the profile."""
    profile = device.profile
    return ASSUMED if profile is None else hashlib.sha256(profile.to_json().encode()).hexdigest()[:16]


def _metrics(found: TrainedModel, device: Device, examples: Sequence[Example]) -> dict[str, Any] | None:
    """Metrics of held-out records; None unless there are many more records than the last time."""
    if len(examples) < max(MIN_EVALUATED, EVALUATION_GROWTH * found.evaluated):
        return None
    found.evaluated = len(examples)
    try:
        return evaluate(examples)
    except Exception:
        log.exception("the cost model of class %s can't be evaluated", device.key)
        return None


def _examples(context: Context, device: Device, history: Sequence[Record]) -> list[Example]:
    """Oldest first."""
    hashes = [record.workload_hash for record in history]
    spaces = context.spaces.load(context.database, hashes, device)
    examples = []
    for record in reversed(history):
        space = spaces.get(record.workload_hash)
        program = space.program(record.trace, record.program) if space is not None else None
        if space is not None and program is not None:
            seconds = math.inf if record.latency_s is None else record.latency_s
            examples.append(Example(record.workload_hash, (space.search, program, seconds)))
    return examples
