"""Every job option is in the bodies, the columns, the flags and the dashboard's repeated request."""

from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from pydantic import ValidationError

from core.job import Build, JobOptions, options_of
from records.jobs.jobs import JobRequest
from records.storage.tables import JobRow
from server.api.jobs import JobBody, JobRequestBody
from tunefarm.cli.tune import compile_, tune
from tunefarm.client import values

ROOT = Path(__file__).parents[3]
OPTIONS = [option.name for option in fields(JobOptions)]
BODY = {"model": "0" * 64, "trials": 1}


@pytest.mark.parametrize("body", [JobBody, JobRequestBody, JobRequest, values.Job, values.JobRequest, JobRow])
def test_each_option_is_a_field(body: type) -> None:
    names = getattr(body, "model_fields", None) or body.__dict__ | getattr(body, "__dataclass_fields__", {})
    assert set(OPTIONS) <= set(names)


@pytest.mark.parametrize("command", [tune, compile_])
def test_each_option_is_a_flag(command: Callable[..., None]) -> None:
    app = typer.Typer()
    app.command()(command)
    flags = [flag for parameter in typer.main.get_command(app).params for flag in parameter.opts]
    assert {f"--{option.replace('_', '-')}" for option in OPTIONS} <= set(flags)


def test_the_dashboard_repeats_a_job_with_each_option() -> None:
    text = (ROOT / "server/dashboard/static/pages/jobs.js").read_text()
    start = text.index("function repeated(job)")
    returned = text[text.index("return {", start) : text.index("}", text.index("return {", start))]
    assert set(OPTIONS) <= set(returned.replace(",", " ").split())


@pytest.mark.parametrize("option", [one for one in fields(JobOptions) if one.metadata["least"] is not None])
def test_the_body_has_the_limits_of_the_option(option: Field[Any]) -> None:
    least, most = option.metadata["least"], option.metadata["most"]
    for inside in (least, most):
        body = JobRequestBody.model_validate(BODY | {option.name: inside})
        assert options_of(body)[option.name] == inside
    for outside in (least - 1, most * 2, float("nan"), float("inf")):
        with pytest.raises(ValidationError, match=option.name):
            JobRequestBody.model_validate(BODY | {option.name: outside})
        with pytest.raises(ValueError, match=option.name):
            JobOptions(**cast(dict[str, Any], {option.name: outside}))


def test_a_build_is_stored_as_text_and_read_as_an_enum() -> None:
    assert JobOptions(build="builder").build is Build.BUILDER  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nobody"):
        JobOptions(build="nobody")  # type: ignore[arg-type]
