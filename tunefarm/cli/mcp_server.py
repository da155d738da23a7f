"""`tunefarm mcp`: tools of the Model Context Protocol to submit, watch and compare jobs."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from core.exit_code import ExitCode
from core.job import MAX_TRIALS, JobState
from core.model_format import recognise
from system.command import CommandError
from tunefarm.cli.device_classes import name_of, named_classes
from tunefarm.cli.differences import difference
from tunefarm.cli.options import Data, Server, Token, checked_model, connected
from tunefarm.cli.progress import by_time
from tunefarm.cli.tune import DEFAULT_TRIALS
from tunefarm.client.client import Client, ClientError
from tunefarm.client.values import Job, JobRequest, Schedule

if TYPE_CHECKING:
    from mcp.server import MCPServer

LOOK_EVERY_S = 2.0
MAX_WAIT_S = 600.0
# Assistants give up soon on a command that doesn't answer.
CHECK_TIMEOUT_S = 5.0

Args = ParamSpec("Args")
Result = TypeVar("Result")


def mcp(server: Server = None, token: Token = None, data: Data = None) -> None:
    """Serve tools to an assistant, to submit and watch jobs (Model Context Protocol).

    It uses standard input and output.
    """
    if importlib.util.find_spec("mcp") is None:
        raise CommandError("the package mcp is missing: pip install 'tunefarm[mcp]'", ExitCode.LOCAL)
    with connected(server, token, data) as service:
        service.client.check(CHECK_TIMEOUT_S)  # otherwise only a tool's call would tell
        mcp_server(service.client).run("stdio")


def mcp_server(client: Client) -> MCPServer:
    """Return a server whose tools call the service."""
    from mcp.server import MCPServer

    served = MCPServer(
        "tunefarm",
        instructions="Tunes neural networks on devices. Latencies are in seconds. Submit a model's file, "
        "then call watch until the job is finished.",
    )
    tools = Tools(client)
    for tool in (
        tools.submit,
        tools.watch,
        tools.jobs,
        tools.subgraphs,
        tools.devices,
        tools.best,
        tools.compare,
    ):
        served.add_tool(_reporting_errors(tool))
    return served


class Tools:
    """The tools. Results are JSON objects with the fields of `tunefarm.client.values`. Jobs and schedules
    also have a `device_name`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(
        self,
        model: str,
        target: str = "native",
        trials: int | None = None,
        minutes: float | None = None,
        shapes: dict[str, list[int]] | None = None,
    ) -> dict[str, Any]:
        """Submit a job that tunes a model (ONNX, .pt2, StableHLO, TFLite) for a device class; return the job.

        `model` is the file's path. The search ends after `trials` (1000 by default) or `minutes`. `shapes`
        are the shapes of dynamic inputs.
        """
        if trials is not None and trials < 1:
            raise ValueError(
                f"a job has at least one trial, not {trials}: leave trials out for {DEFAULT_TRIALS}"
            )
        path = checked_model(Path(model))
        with path.open("rb") as file:
            recognise(
                file
            )  # nothing but a model leaves this machine, whatever an assistant is made to ask for
        stored = self._client.upload(path)
        request = JobRequest(
            model=stored.sha256,
            trials=trials or (DEFAULT_TRIALS if minutes is None else MAX_TRIALS),
            shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
            target=target,
            minutes=minutes,
        )
        return self._named([self._client.submit(request)])[0]

    def watch(self, job: str, wait_s: float = 60.0) -> dict[str, Any]:
        """Wait until a job is finished, but at most `wait_s` seconds (up to 600); return the job.

        While it is tuned, `estimated_latency_s` is the sum of its subgraphs' best latencies; null until all
        are measured.
        """
        job_id = self._client.job_id(job)
        end = time.monotonic() + min(max(wait_s, 0.0), MAX_WAIT_S)
        while not (found := self._client.job(job_id)).state.finished and time.monotonic() < end:
            time.sleep(LOOK_EVERY_S)
        return self._named([found])[0]

    def jobs(self, limit: int = 20, state: JobState | None = None) -> list[dict[str, Any]]:
        """Return jobs, newest first."""
        return self._named(list(islice(self._client.jobs(state=state), max(limit, 0))))

    def subgraphs(self, job: str) -> list[dict[str, Any]]:
        """Return a job's subgraphs, costliest first. `verdict` says how much each can still gain."""
        return [asdict(task) for task in by_time(self._client.tasks(self._client.job_id(job)))]

    def devices(self) -> list[dict[str, Any]]:
        """Return the device classes that models can be tuned for. Use a `key` or `name` as `target`."""
        return [asdict(device) for device in self._client.device_classes()]

    def best(self, workload: str, target: str = "native") -> dict[str, Any]:
        """Return the best known schedule of a workload, given by its hash."""
        return self._named([self._client.best(workload, target)])[0]

    def compare(self, first: str, second: str) -> dict[str, Any]:
        """Compare the published models of two finished jobs: latencies, subgraphs and options."""
        found = difference(self._client, first, second).as_json()
        if "device_class" in found["options"]:
            classes = named_classes(self._client)
            keys = found["options"]["device_class"]
            found["options"]["device_name"] = [name_of(classes, key) for key in keys]
        return found

    def _named(self, found: Sequence[Job | Schedule]) -> list[dict[str, Any]]:
        """Return jobs or schedules as JSON objects with a `device_name`, null while the class isn't known."""
        classes = named_classes(self._client)
        names = [one.device_class and name_of(classes, one.device_class) for one in found]
        return [asdict(one) | {"device_name": name} for one, name in zip(found, names, strict=True)]


def _reporting_errors(tool: Callable[Args, Result]) -> Callable[Args, Result]:
    """Wrap a tool so that the messages of expected errors reach the assistant."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    def telling(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        try:
            return tool(*args, **kwargs)
        except (ClientError, CommandError, OSError, ValueError) as error:
            raise ToolError(str(error)) from error

    return telling
