"""The HTTP application."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI

from server import access_routes, cost_models, events, health, jobs, models, schedules, workers
from server.context import Context
from server.guards import Guard, LimitBody
from server.metrics import CountRequests
from server.problems import MEDIA_TYPE, ProblemBody, install

_MAX_BODY_BYTES = 4 << 20
_MAX_IMPORT_BYTES = 256 << 20


def create_app(context: Context) -> FastAPI:
    """The application that serves `context`."""
    problem = {"model": ProblemBody, "content": {MEDIA_TYPE: {}}}
    app = FastAPI(
        title="tunefarm",
        description="Tunes neural networks for the devices that will run them.",
        version=_version(),
        docs_url=None,
        redoc_url=None,
        responses={422: problem, "default": problem},
    )
    app.state.context = context
    rooms = (models.router, events.router, jobs.router, workers.router)
    for router in (*rooms, schedules.router, cost_models.router, access_routes.router, health.router):
        app.include_router(router)
    install(app)
    app.add_middleware(LimitBody, max_bytes=lambda path: _max_bytes(context, path))
    app.add_middleware(Guard, access=context.access, audit=context.audit)
    app.add_middleware(CountRequests, metrics=context.metrics)
    return app


def _max_bytes(context: Context, path: str) -> int:
    if path == "/v1/models":
        return context.settings.max_upload_bytes
    return _MAX_IMPORT_BYTES if path == "/v1/schedules/import" else _MAX_BODY_BYTES


def _version() -> str:
    try:
        return version("tunefarm")
    except PackageNotFoundError:
        return "0"
