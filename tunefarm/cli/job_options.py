"""The flags of a job's options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import Field, fields
from typing import Annotated, Any, get_type_hints

import typer

from core.exit_code import ExitCode
from core.job import JobOptionError, JobOptions
from system.command import CommandError


def with_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each job option, in place of its parameter `options: JobOptions`.

    The command raises CommandError for options outside their limits, or that exclude each other.
    """
    signature, hints = inspect.signature(command, eval_str=True), get_type_hints(JobOptions)
    flags = {
        option.name: inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=Annotated[hints[option.name], _flag(option)],
        )
        for option in fields(JobOptions)
    }

    @functools.wraps(command)
    def with_options(**arguments: Any) -> None:
        try:
            options = JobOptions(**{name: arguments.pop(name) for name in flags})
        except JobOptionError as error:
            raise CommandError(error.text(_flag_name), ExitCode.USAGE) from error
        command(**arguments, options=options)

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += flags.values() if parameter.annotation is JobOptions else [parameter]
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    del with_options.__wrapped__
    return with_options


def _flag(option: Field[Any]) -> Any:
    # JobOptions checks floats, because a range of click's accepts NaN.
    is_float = isinstance(option.default, float)
    limits = {} if is_float else {"min": option.metadata["least"], "max": option.metadata["most"]}
    return typer.Option(_flag_name(option.name), help=option.metadata["help"], **limits)


def _flag_name(option: str) -> str:
    return f"--{option.replace('_', '-')}"
