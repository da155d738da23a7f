"""Train the cost model of each device class on the measurements of all jobs. Every training is stored as a
version, so a new scheduler continues with the newest one.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from core.device import Device
from records.schedules import cost_models, schedules
from records.schedules.cost_models import Version
from records.schedules.schedules import Record
from records.storage.database import Database
from scheduler.learning.evaluation import Example, evaluate
from scheduler.spaces import Spaces
from search.cost.model import ASSUMED, CostModel
from search.policy import train

# Reading more records and computing their features would take too long. The newest records matter most for
# the current search.
HISTORY_LIMIT = 5_000
# While training has taken less than EAGER_TRAINING_SHARE of the time, any new record triggers a training. Up
# to MAX_TRAINING_SHARE, a training needs a batch of new records that is at least BATCH_GROWTH times the
# learned records.
EAGER_TRAINING_SHARE = 0.03
MAX_TRAINING_SHARE = 0.06
BATCH_GROWTH = 0.05
# The model is evaluated when the number of records has grown by this factor since the last evaluation.
EVALUATION_GROWTH = 1.5
MIN_EVALUATED = 100

log = logging.getLogger(__name__)


@dataclass
class TrainedModel:
    """The cost model of a device class, and the course of its training in this process.

    started_at      epoch seconds at which this process began with the class
    records         number of records that the model was trained on
    newest_id       id of the newest record at the last training
    evaluated       number of records at the last evaluation
    training_s      seconds spent on training since `started_at`
    profile_digest  digest of the device profile whose estimates the model corrects
    """

    started_at: float
    model: CostModel
    records: int = 0
    newest_id: int = 0
    evaluated: int = 0
    training_s: float = 0.0
    profile_digest: str = ASSUMED

    @property
    def is_learned(self) -> bool:
        return self.model.is_learned

    def is_due(self, num_new: int, now: float, batch_size: int) -> bool:
        """Return whether to train again with `num_new` new records, so that training costs little."""
        elapsed_s = max(now - self.started_at, 0.0)
        if num_new == 0:
            return False
        if self.training_s <= EAGER_TRAINING_SHARE * elapsed_s:
            return True
        is_enough = num_new >= max(batch_size, BATCH_GROWTH * self.records)
        return is_enough and self.training_s <= MAX_TRAINING_SHARE * elapsed_s


class Trainer:
    """Keeps the cost models of device classes up to date: `models`, by the key of the class.

    `now` returns epoch seconds; `batch_size` is the least number of new records for a training once training
    is expensive.
    """

    def __init__(self, database: Database, spaces: Spaces, now: Callable[[], float], batch_size: int) -> None:
        self.models: dict[str, TrainedModel] = {}
        self._database = database
        self._spaces = spaces
        self._now = now
        self._batch_size = batch_size

    def up_to_date(self, device: Device) -> TrainedModel:
        """Return the model of a device class, after training it again if that is due. If training fails,
        return the previous model.
        """
        profile = device.profile
        digest = ASSUMED if profile is None else hashlib.sha256(profile.to_json().encode()).hexdigest()[:16]
        trained = self.models.get(device.key)
        if trained is None or trained.profile_digest != digest:
            trained = self.models[device.key] = self._resume(device, digest)
        if self._now() < trained.started_at:
            # The clock was set back, so training's share of the time is unknown.
            trained.started_at, trained.training_s = self._now(), 0.0
        with self._database.begin() as session:
            num_new = schedules.count_after(session, device.key, trained.newest_id)
        if trained.is_due(num_new, self._now(), self._batch_size):
            self._train(device, trained)
        return trained

    def _resume(self, device: Device, digest: str) -> TrainedModel:
        """Return the newest version stored if its features and its profile are still the same.

        Otherwise return a model that hasn't learned anything.
        """
        trained = TrainedModel(self._now(), CostModel(), profile_digest=digest)
        with self._database.begin() as session:
            stored = cost_models.newest(session, device.key)
        if stored is None:
            return trained
        version, data = stored
        try:
            trained.model = CostModel.from_bytes(data, digest)
        except ValueError as error:
            log.warning("the last cost model of class %s can't be used: %s", device.key, error)
            return trained
        trained.records = version.records
        with self._database.begin() as session:
            trained.newest_id = schedules.last_until(session, device.key, version.newest_record_at)
        # Count it as a training of this process, so that a restart doesn't train at once.
        trained.training_s = version.train_s
        return trained

    def _train(self, device: Device, trained: TrainedModel) -> None:
        """Train on the newest records, evaluate the model if there are many more, and store the version."""
        started_at = self._now()
        with self._database.begin() as session:
            trained.newest_id, newest_at = schedules.newest(session, device.key)
            history = schedules.history(session, device.key, HISTORY_LIMIT)
        examples = self._examples(device, history)
        try:
            model = train([example.sample for example in examples])
        except Exception:
            # No exception of the learner may stop a job: the previous model is still there.
            log.exception("the cost model of class %s can't be trained: the last one stays", device.key)
            trained.training_s += max(self._now() - started_at, 0.0)
            return
        trained.model, trained.records = model, len(examples)
        train_s = max(self._now() - started_at, 0.0)
        metrics: dict[str, Any] | None = None
        if len(examples) >= max(MIN_EVALUATED, EVALUATION_GROWTH * trained.evaluated):
            trained.evaluated = len(examples)
            try:
                metrics = evaluate(examples)
            except Exception:
                log.exception("the cost model of class %s can't be evaluated", device.key)
        trained.training_s += max(self._now() - started_at, 0.0)
        if trained.is_learned:
            version = Version(device.key, trained.records, newest_at, self._now(), train_s, metrics)
            with self._database.begin() as session:
                cost_models.add(session, version, model.to_bytes(trained.profile_digest))

    def _examples(self, device: Device, newest_first: Sequence[Record]) -> list[Example]:
        """Return the examples of records whose program belongs to a current space, oldest first."""
        spaces = self._spaces.load([record.workload_hash for record in newest_first], device)
        examples = []
        for record in reversed(newest_first):
            space = spaces.get(record.workload_hash)
            program = space.program(record.trace, record.program) if space is not None else None
            if space is not None and program is not None:
                seconds = math.inf if record.latency_s is None else record.latency_s
                examples.append(Example(record.workload_hash, (space.search_task, program, seconds)))
        return examples
