"""The HTTP application."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI

from server.access.middleware import AccessMiddleware, BodySizeMiddleware
from server.api import access as access_routes
from server.api import cost_models, events, health, jobs, models, schedules, workers
from server.api.metrics import RequestMetricsMiddleware
from server.api.problems import EVERYWHERE, GUARDED, ProblemBody, install
from server.context import ServerContext

_MAX_BODY_BYTES = 4 << 20
_MAX_IMPORT_BYTES = 256 << 20


class Application(FastAPI):
    """Its document knows the problems that routes refer to: as a model of theirs, FastAPI would say that they
    come as plain JSON."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document["components"]["schemas"][ProblemBody.__name__] = ProblemBody.model_json_schema()
        return document


def create_app(context: ServerContext) -> FastAPI:
    """The application that serves `context`."""
    app = Application(
        title="tunefarm",
        description="Tunes neural networks for the devices that will run them.",
        version=_version(),
        docs_url=None,
        redoc_url=None,
        responses=EVERYWHERE,
    )
    app.state.context = context
    rooms = (models.router, events.router, jobs.router, workers.router)
    for router in (*rooms, schedules.router, cost_models.router, access_routes.router):
        app.include_router(router, responses=GUARDED)
    app.include_router(health.router)
    install(app)
    app.add_middleware(BodySizeMiddleware, max_bytes=lambda path: _max_bytes(context, path))
    app.add_middleware(AccessMiddleware, authenticator=context.authenticator, audit=context.audit)
    app.add_middleware(RequestMetricsMiddleware, metrics=context.metrics)
    return app


def _max_bytes(context: ServerContext, path: str) -> int:
    if path == "/v1/models":
        return context.settings.max_upload_bytes
    return _MAX_IMPORT_BYTES if path == "/v1/schedules/import" else _MAX_BODY_BYTES


def _version() -> str:
    try:
        return version("tunefarm")
    except PackageNotFoundError:
        return "0"
