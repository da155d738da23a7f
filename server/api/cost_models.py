"""`/v1/cost-models`: the accuracy of the learned cost model of each device class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from records import devices
from records.schedules import cost_models
from records.schedules.cost_models import Version, evaluated
from server.api.fields import Name
from server.api.targets import device_class
from server.context import ContextDep
from server.problems import Problem, problems

router = APIRouter(prefix="/v1/cost-models", tags=["cost models"])


class MetricsBody(BaseModel):
    """The quality of predictions of the throughput of `records`, relative to the best record of each task.

    `pairwise` is the share of pairs in the right order. `recall` is the share of the 30 fastest records that
    are among the 30 fastest predictions. A metric is null where too few records define it.
    """

    records: int
    r2: float | None
    pairwise: float | None
    recall: float | None


class ComparedBody(BaseModel):
    """The metrics of the learned model and of the analytic estimate on the same records."""

    learned: MetricsBody
    analytic: MetricsBody


class HeldOutBody(ComparedBody):
    """Metrics on records held out of training, over all of them and by workload in `tasks`. The model was
    trained on the other `trained_on` records."""

    trained_on: int
    tasks: dict[str, ComparedBody]


class CostModelBody(BaseModel):
    """A device class's cost model, trained `versions` times, last on `records` records.

    `train_s` are the seconds of the last training, `total_train_s` of all of them. `metrics` are the newest
    ones, of the version that was trained at `metrics_at`; null while there are too few records. Times are
    epoch seconds.
    """

    device_class: str
    device_name: str
    versions: int
    records: int
    newest_record_at: float
    created_at: float
    train_s: float
    total_train_s: float
    metrics_at: float | None
    metrics: HeldOutBody | None

    @classmethod
    def of(cls, device_name: str, versions: Sequence[Version]) -> CostModelBody:
        newest, measured = versions[0], evaluated(versions)
        return cls(
            device_class=newest.device_class,
            device_name=device_name,
            versions=len(versions),
            records=newest.records,
            newest_record_at=newest.newest_record_at,
            created_at=newest.created_at,
            train_s=newest.train_s,
            total_train_s=sum(version.train_s for version in versions),
            metrics_at=measured.created_at if measured else None,
            metrics=HeldOutBody.model_validate(measured.metrics) if measured else None,
        )


class CostModelsBody(BaseModel):
    """Cost models, by device class."""

    items: list[CostModelBody]


class VersionBody(BaseModel):
    """A training of a cost model; `metrics` are null where they weren't computed."""

    records: int
    created_at: float
    train_s: float
    metrics: HeldOutBody | None


class VersionsBody(BaseModel):
    """The versions of a device class's cost model, oldest first."""

    device_class: str
    items: list[VersionBody]


@router.get("/{device_class}/versions")
def show_versions(device_class: Name, context: ContextDep) -> VersionsBody:
    """Return the accuracy of each version of a device class's cost model on held-out records."""
    with context.database.begin() as session:
        found = cost_models.versions(session, device_class).get(device_class, [])
    items = [
        VersionBody(
            records=version.records,
            created_at=version.created_at,
            train_s=version.train_s,
            metrics=None if version.metrics is None else HeldOutBody.model_validate(version.metrics),
        )
        for version in reversed(found)
    ]
    return VersionsBody(device_class=device_class, items=items)


@router.get("", responses=problems(404))
def show_cost_models(
    context: ContextDep, target: Annotated[Name | None, Query(description="only of this class")] = None
) -> CostModelsBody:
    """Return the cost model of every device class that has one, with its metrics on held-out records."""
    with context.database.begin() as session:
        key = None if target is None else device_class(session, target, context.now())
        versions = cost_models.versions(session, key)
        names = {device.key: device.name for device in devices.classes(session)}
    if key is not None and key not in versions:
        begins = "that begins with the first trials, tune a model"
        detail = f"No cost model of {names[key]} was trained yet: {begins}."
        raise Problem(404, "no-cost-model", detail)
    return CostModelsBody(items=[CostModelBody.of(names[one], found) for one, found in versions.items()])
