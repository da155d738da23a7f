"""The fields of a job's options, in the bodies of requests and responses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field as DataclassField
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, Field, create_model

from core.job import JobOptions

Body = TypeVar("Body", bound=BaseModel)


def with_job_options(*, required: bool) -> Callable[[type[Body]], type[Body]]:
    """Return a decorator that adds a field for each job option to a body. Optional fields have the option's
    default, and are checked against its limits."""
    hints = get_type_hints(JobOptions)

    def decorate(body: type[Body]) -> type[Body]:
        added: dict[str, Any] = {
            option.name: (hints[option.name], _required(option) if required else _optional(option))
            for option in fields(JobOptions)
        }
        return create_model(
            body.__name__, __base__=body, __module__=body.__module__, __doc__=body.__doc__, **added
        )

    return decorate


def _required(option: DataclassField[Any]) -> Any:
    return Field(description=option.metadata["help"])


def _optional(option: DataclassField[Any]) -> Any:
    limits: dict[str, Any] = {"ge": option.metadata["least"], "le": option.metadata["most"]}
    if isinstance(option.default, float):
        limits["allow_inf_nan"] = False
    if isinstance(option.default, StrEnum):
        limits["strict"] = False  # in JSON, its members are strings
    return Field(default=option.default, description=option.metadata["help"], **limits)
