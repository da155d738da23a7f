"""The reference of the documentation site, made from the code: commands, HTTP, settings, metrics, Python."""

from __future__ import annotations

import contextlib
import inspect
import io
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import typer
from prometheus_client import CollectorRegistry
from pydantic import AliasChoices
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from core.exit_code import ExitCode
from core.tokens import Scope
from records.storage.database import Database
from scheduler.main import scheduler
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings
from server.access.scopes import OPEN_PATHS, ROUTES
from server.app import create_app
from server.context import ServerContext
from server.main import server
from server.metrics import ServerMetrics
from server.settings import ServerSettings
from system import logs, tracing
from system.command import run_function
from tunefarm.cli.app import app, run
from tunefarm.settings import CommandSettings
from worker.main import worker
from worker.settings import WorkerSettings

_PROCESSES: dict[str, Callable[..., object]] = {"server": server, "scheduler": scheduler, "worker": worker}
_SETTINGS: dict[str, type[BaseSettings]] = {
    "the command": CommandSettings,
    "a server": ServerSettings,
    "a scheduler": SchedulerSettings,
    "a worker": WorkerSettings,
}


def pages() -> dict[str, str]:
    """Return the pages of the reference, by their paths."""
    return {
        "reference/command-line.md": command_line(),
        "reference/http.md": http(),
        "reference/python.md": python(),
        "reference/settings.md": settings(),
        "reference/metrics.md": metrics(),
    }


def command_line() -> str:
    """Return the `--help` of every command."""
    lines = ["# Command line", "", "Every command exits with one of [these codes](#exit-codes).", ""]
    for words in sorted(_commands(typer.main.get_command(app), ())):
        lines += [f"## tunefarm {' '.join(words)}", "", "```text", _help(words), "```", ""]
    codes = ((code.value, code.meaning) for code in ExitCode)
    return "\n".join([*lines, "## Exit codes", "", *_table(("code", "meaning"), codes)])


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))


def _help(words: tuple[str, ...]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if words[0] in _PROCESSES:
            # Their flags are parsed by the process that the command starts.
            run_function(_PROCESSES[words[0]], f"tunefarm {words[0]}", ["--help"])
        else:
            run(app, [*words, "--help"])
    return said.getvalue().strip()


def http() -> str:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/tunefarm.db"
        database = Database(url)
        settings = ServerSettings(database_url=url, broker=folder)
        context = ServerContext(settings, database, lambda step, job: None, time.time, lambda: "")
        document = create_app(context).openapi()
        database.close()
    lines = [
        "# HTTP",
        "",
        "This page was made from `/openapi.json`, like the service's page `/docs`. Tests send all examples. "
        'Where a service asks for tokens, add `-H "Authorization: Bearer TOKEN"`. Errors are problem '
        "documents (RFC 9457).",
        "",
    ]
    for path, operations in sorted(document["paths"].items()):
        for method, operation in operations.items():
            lines += _operation(method.upper(), path, operation)
    lines += ["# Bodies", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += _schema(name, schema)
    return "\n".join(lines)


def _operation(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    scopes = {_plain(route): scope for route, scope in ROUTES.items()}
    scope = scopes.get(_plain(f"{method} {path}"), Scope.ADMIN)
    needs = "no token" if path in OPEN_PATHS else "any token" if scope is None else f"the scope `{scope}`"
    lines = [f"## {method} {path}", "", _text(operation["description"]), "", f"Needs {needs}.", ""]
    lines += [
        line for sample in operation["x-codeSamples"] for line in ("```sh", sample["source"], "```", "")
    ]
    rows = [
        (f"`{one['name']}`", one["in"], _type(one["schema"]), one.get("description", ""))
        for one in operation.get("parameters", ())
    ]
    if rows:
        lines += _table(("parameter", "in", "type", "meaning"), rows)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        lines += [f"The body is {_type(content.get('schema', {}))} (`{kind}`).", ""]
    answers = []
    for status, answer in sorted(operation["responses"].items()):
        bodies = [
            f"{_type(body.get('schema', {}))} (`{kind}`)" for kind, body in answer.get("content", {}).items()
        ]
        answers.append((status, answer["description"], ", ".join(bodies)))
    return lines + _table(("status", "", "body"), answers)


def _plain(route: str) -> str:
    return route.replace(":path}", "}")


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    required = set(schema.get("required", ()))
    rows = [
        (
            f"`{field}`" + ("" if field in required else " (optional)"),
            _type(about),
            about.get("description", ""),
        )
        for field, about in schema.get("properties", {}).items()
    ]
    text = _text(schema.get("description", ""))
    lines = [f"## {name}", "", text, ""]
    if "enum" in schema:
        lines += [f"One of {', '.join(f'`{one}`' for one in schema['enum'])}.", ""]
    return lines + (_table(("field", "type", "meaning"), rows) if rows else [])


def _type(schema: dict[str, Any]) -> str:
    """Describe a JSON schema in a phrase."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def settings() -> str:
    lines = [
        "# Settings",
        "",
        "Environment variables; flags come first. [Install a service](../deployment.md#settings) says more.",
        "",
    ]
    common = (
        (f"`{logs.VARIABLE}`", "`json` for one object a line"),
        *((f"`{name}`", "where [traces](../tracing.md) are sent") for name in tracing.ENDPOINTS),
    )
    lines += ["## Of every process of a service", "", *_table(("variable", "meaning"), common)]
    for whose, of in _SETTINGS.items():
        lines += [f"## Of {whose}", "", _text(inspect.getdoc(of) or ""), ""]
        rows = []
        for name, field in of.model_fields.items():
            alias = field.validation_alias
            prefix = of.model_config.get("env_prefix", "")
            names = (
                [str(one) for one in alias.choices]
                if isinstance(alias, AliasChoices)
                else [f"{prefix}{name.upper()}"]
            )
            if field.default_factory is not None:
                default = "of this machine"
            elif field.default is PydanticUndefined:
                default = "needed"
            else:
                default = "" if field.default is None else f"`{field.default}`"
            rows.append((", ".join(f"`{one}`" for one in names), _annotation(field.annotation), default))
        lines += _table(("variable", "type", "default"), rows)
    return "\n".join(lines)


def _annotation(annotation: Any) -> str:
    name = annotation.__name__ if inspect.isclass(annotation) else str(annotation)
    for long, short in (("pathlib.", ""), ("typing.", ""), ("pydantic.types.", ""), ("NoneType", "None")):
        name = name.replace(long, short)
    # What may be left out has no default.
    return f"`{name.removesuffix(' | None')}`"


def metrics() -> str:
    lines = [
        "# Metrics",
        "",
        "A server shows them at `/metrics`, a scheduler at the port `TUNEFARM_METRICS_PORT`.",
        "",
    ]
    for whose, registry in (
        ("a server", ServerMetrics().registry),
        ("a scheduler", SchedulerMetrics().registry),
    ):
        lines += [f"## Of {whose}", "", *_table(("metric", "type", "labels", "meaning"), _metrics(registry))]
    return "\n".join(lines)


def _metrics(registry: CollectorRegistry) -> Iterable[Sequence[object]]:
    for collector in registry._collector_to_names:
        [metric] = collector.describe() if hasattr(collector, "describe") else collector.collect()
        suffix = "_total" if metric.type == "counter" else ""
        labels = ", ".join(f"`{one}`" for one in collector._labelnames)  # type: ignore[attr-defined]
        yield f"`{metric.name}{suffix}`", metric.type, labels, metric.documentation


def python() -> str:
    import tunefarm.client

    lines = ["# Python", "", "## tunefarm.client", ""]
    for name in sorted(tunefarm.client.__all__):
        lines += [f"::: tunefarm.client.{name}", ""]
    for module in ("tunefarm.tvm_database", "tunefarm_runtime.model", "tunefarm_runtime.session"):
        lines += [f"## {module}", "", f"::: {module}", ""]
    return "\n".join(lines)


def _text(text: str) -> str:
    """Return a docstring as Markdown: its names are in backticks already."""
    return inspect.cleandoc(text).replace("<", "&lt;")


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    def line(cells: Iterable[object]) -> str:
        texts = (" ".join(str(cell).split()).replace("|", "\\|") for cell in cells)
        return f"| {' | '.join(texts)} |"

    return [line(head), f"|{'---|' * len(head)}", *(line(row) for row in rows), ""]
