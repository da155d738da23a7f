"""The HTTP application: routes, middleware and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.routing import BaseRoute

from server.access.middleware import AccessMiddleware, BodySizeMiddleware
from server.access.open_calls import OpenCalls
from server.api import (
    artifacts,
    browser_session,
    cost_models,
    events,
    health,
    import_body,
    inferences,
    jobs,
    metrics,
    models,
    quantizations,
    releases,
    schedules,
    tokens,
    webhooks,
    workers,
    workloads,
)
from server.api.examples import add_examples
from server.api.metrics import RequestMetricsMiddleware
from server.api.schedules import RoutineLookUps
from server.context import ServerContext
from server.dashboard import report
from server.dashboard import routes as dashboard
from server.head_requests import HeadMiddleware
from server.install import routes as install
from server.problems import COMMON_PROBLEMS, PROBLEMS_WITH_TOKENS, ProblemBody, install_error_handlers
from system import tracing

# Parsing JSON blocks other requests, for a time that grows with the text.
_MAX_BODY_BYTES = 256 << 10
_MAX_QUERY_BYTES = 2 << 20
# Responses below this size aren't compressed, because they fit into a few packets. Artifacts aren't either,
# because compiled code hardly shrinks.
_COMPRESSED_FROM_BYTES = 16 << 10
_NOT_COMPRESSED = (
    *DEFAULT_EXCLUDED_CONTENT_TYPES,
    *("application/x-tar", "application/zip", "application/octet-stream"),
)
# Paths without traces: probes and files would hide the other spans, and a stream of events lasts as long as
# its job.
_NOT_TRACED = "healthz,readyz,/metrics,/assets/,/events"


class Application(FastAPI):
    """A FastAPI application whose OpenAPI document has the schema of problem documents, and examples.

    The schema is added to the document by hand. If routes named ProblemBody as a model, FastAPI would declare
    problems as `application/json`.
    """

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        if ProblemBody.__name__ not in document["components"]["schemas"]:
            document["components"]["schemas"][ProblemBody.__name__] = ProblemBody.model_json_schema()
            add_examples(document)
        return document


@cache
def _routes() -> Sequence[BaseRoute]:
    """Return the routes, which all applications of a process share: reading their signatures takes 0.1 s."""
    router = APIRouter(responses=COMMON_PROBLEMS)
    of_jobs, of_schedules = (
        (models, jobs, quantizations, inferences, events, artifacts, releases),
        (schedules, workloads, cost_models),
    )
    for guarded in (*of_jobs, *of_schedules, workers, tokens, webhooks, browser_session, metrics, report):
        router.include_router(guarded.router, responses=PROBLEMS_WITH_TOKENS)
    for open_to_all in (health, dashboard, install):
        router.include_router(open_to_all.router)
    return router.routes


def create_app(context: ServerContext) -> FastAPI:
    """Return the application that serves `context`."""
    app = Application(
        title="tunefarm",
        description="Tunes neural networks for the devices that will run them.",
        version=context.version or "0",
        # FastAPI's pages would load scripts from the internet, which closed networks lack. `/docs` leads
        # to a page of the dashboard.
        docs_url=None,
        redoc_url=None,
        responses=COMMON_PROBLEMS,
    )
    app.state.context = context
    app.router.routes.extend(_routes())
    install_error_handlers(app)
    settings = context.settings
    max_bytes = {
        "/v1/models": settings.max_upload_bytes,
        "/v1/datasets": settings.max_upload_bytes,
        "/v1/schedules/import": import_body.MAX_BYTES,
        "/v1/schedules:query": _MAX_QUERY_BYTES,
    }
    app.add_middleware(
        GZipMiddleware,
        minimum_size=_COMPRESSED_FROM_BYTES,
        compresslevel=4,  # higher levels take twice the time and save 2%
        exclude_content_types=_NOT_COMPRESSED,
    )
    app.add_middleware(RoutineLookUps, look_ups=context.look_ups)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(
        BodySizeMiddleware,
        max_bytes=lambda path: max_bytes.get(path, _MAX_BODY_BYTES),
        uploads=("/v1/models", "/v1/datasets", "/v1/schedules/import"),
    )
    uploads = OpenCalls("uploads", settings.max_uploads)
    open_calls = {
        "POST /v1/models": uploads,
        "POST /v1/datasets": uploads,
        "POST /v1/schedules/import": uploads,
        "GET /v1/jobs/{job_id}/events": OpenCalls("event streams", settings.max_event_streams),
    }
    app.add_middleware(
        AccessMiddleware,
        authenticator=context.authenticator,
        audit=context.audit,
        open_calls=open_calls,
    )
    app.add_middleware(RequestMetricsMiddleware, metrics=context.metrics)
    if tracing.is_on():
        from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

        FastAPIInstrumentor.instrument_app(app, excluded_urls=_NOT_TRACED, exclude_spans=["receive", "send"])
    return app
