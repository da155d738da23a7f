"""`/v1/cost-models`: how well the learned cost model of each device class predicts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from records.fleet import devices
from records.schedules import cost_models
from server.api.problems import Problem, problems
from server.api.schemas import CostModelBody, CostModelsBody, Name
from server.api.targets import device_class
from server.context import ContextDep

router = APIRouter(prefix="/v1/cost-models", tags=["cost models"])


@router.get("", responses=problems(404))
def show_cost_models(
    context: ContextDep, target: Annotated[Name | None, Query(description="only of this class")] = None
) -> CostModelsBody:
    """The cost model of every device class that has one, with its metrics on records held out."""
    with context.database.begin() as session:
        key = None if target is None else device_class(session, target)
        known = cost_models.versions(session, key)
        names = {device.key: device.name for device in devices.classes(session)}
    if key is not None and key not in known:
        detail = f"No cost model of {key} was trained yet: that begins with the first trials, tune a model."
        raise Problem(404, "no-cost-model", detail)
    return CostModelsBody(items=[CostModelBody.of(names[one], found) for one, found in known.items()])
