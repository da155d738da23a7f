"""The HTTP application: routes, middleware and the OpenAPI document."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI

from server.access.middleware import AccessMiddleware, BodySizeMiddleware
from server.api import access, cost_models, events, health, jobs, metrics, models, schedules, workers
from server.api.metrics import RequestMetricsMiddleware
from server.context import ServerContext
from server.problems import EVERYWHERE, GUARDED, ProblemBody, install_error_handlers

_MAX_BODY_BYTES = 4 << 20
_MAX_IMPORT_BYTES = 256 << 20


class Application(FastAPI):
    """A FastAPI application whose OpenAPI document has the schema of problem documents.

    The schema is added to the document by hand: if routes named ProblemBody as a model, FastAPI would say
    that problems come as `application/json`.
    """

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document["components"]["schemas"][ProblemBody.__name__] = ProblemBody.model_json_schema()
        return document


def create_app(context: ServerContext) -> FastAPI:
    """Return the application that serves `context`."""
    try:
        tunefarm_version = version("tunefarm")
    except PackageNotFoundError:
        tunefarm_version = "0"
    app = Application(
        title="tunefarm",
        description="Tunes neural networks for the devices that will run them.",
        version=tunefarm_version,
        # FastAPI's pages load their scripts from the internet, which a service on a closed network hasn't.
        docs_url=None,
        redoc_url=None,
        responses=EVERYWHERE,
    )
    app.state.context = context
    for guarded in (models, events, jobs, workers, schedules, cost_models, access, metrics):
        app.include_router(guarded.router, responses=GUARDED)
    app.include_router(health.router)
    install_error_handlers(app)
    max_bytes = {"/v1/models": context.settings.max_upload_bytes, "/v1/schedules/import": _MAX_IMPORT_BYTES}
    app.add_middleware(BodySizeMiddleware, max_bytes=lambda path: max_bytes.get(path, _MAX_BODY_BYTES))
    app.add_middleware(AccessMiddleware, authenticator=context.authenticator, audit=context.audit)
    app.add_middleware(RequestMetricsMiddleware, metrics=context.metrics)
    return app
