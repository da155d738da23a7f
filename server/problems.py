"""Every error as an RFC 9457 problem document."""

from __future__ import annotations

import errno
import http
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from records.access import TokenNotFound
from records.fleet.workers import WorkerNotFound
from records.jobs.inferences import InferenceNotFound
from records.jobs.jobs import IdempotencyConflict, JobNotFound
from records.jobs.models import DatasetNotFound, ModelNotFound
from records.jobs.outlines import OutlineNotFound
from records.jobs.releases import ReleaseNotFound
from records.jobs.tasks import WorkloadNotFound
from records.storage.blobs import BlobNotFound
from records.storage.database import StorageError
from records.webhooks import WebhookNotFound

_log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_MISSING: dict[type[Exception], str] = {
    JobNotFound: "job",
    InferenceNotFound: "inference",
    DatasetNotFound: "dataset",
    ModelNotFound: "model",
    OutlineNotFound: "outline",
    ReleaseNotFound: "release",
    BlobNotFound: "file",
    WorkloadNotFound: "workload",
    TokenNotFound: "token",
    WebhookNotFound: "webhook",
    WorkerNotFound: "worker",
}
_EXPLANATIONS = {
    404: "There is nothing at this address: see /openapi.json for the addresses that exist.",
    405: "This address doesn't take this method: see the Allow header.",
}


class ProblemBody(BaseModel):
    """An RFC 9457 problem document. `type` names the kind of problem. Published types keep their meaning."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of a route that answers these statuses with a problem document."""
    content = {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{ProblemBody.__name__}"}}}
    return {
        status: {"description": http.HTTPStatus(status).phrase, "content": content} for status in statuses
    }


# Statuses of any route: the body is too large, parameters are invalid, too many requests, an internal error.
COMMON_PROBLEMS = problems(413, 422, 429, 500)
# Statuses of any route except probes: the token is missing, wrong or lacks the scope; the storage is
# unavailable or full.
PROBLEMS_WITH_TOKENS = problems(401, 403, 503, 507)


class Problem(HTTPException):
    """An error that ends a request. `detail` is one sentence with the cause and the next step. `extra` has
    further members of the document."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **extra: object,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.kind = kind
        self.extra = extra

    def response(self) -> JSONResponse:
        """Return the problem document."""
        body = {
            "type": f"urn:tunefarm:problem:{self.kind}",
            "title": self.kind.replace("-", " ").capitalize(),
            "status": self.status_code,
            "detail": self.detail,
            **self.extra,
        }
        return JSONResponse(body, self.status_code, headers=self.headers, media_type=MEDIA_TYPE)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of the application a problem document."""
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(StorageError, _on_storage)
    app.add_exception_handler(OSError, _on_storage)
    app.add_exception_handler(IdempotencyConflict, _on_conflict)
    for kind in _MISSING:
        app.add_exception_handler(kind, _on_missing)
    app.add_middleware(InternalErrorMiddleware)


def storage_problem(error: StorageError | OSError) -> Problem:
    """Return the problem document of a storage failure."""
    full = error.full if isinstance(error, StorageError) else error.errno in _NO_SPACE
    if full:
        return Problem(507, "storage-full", f"The service's disk is full, nothing was stored: {error}.")
    return Problem(503, "storage-unavailable", f"The service can't use its storage: {error}.")


async def _on_http(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error, Problem):
        return error.response()
    phrase = http.HTTPStatus(error.status_code).phrase
    detail = error.detail if error.detail != phrase else _EXPLANATIONS.get(error.status_code, phrase)
    kind = phrase.lower().replace(" ", "-")
    return Problem(error.status_code, kind, detail, headers=error.headers).response()


async def _on_invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = [_invalid_field(part) for part in error.errors()[:20]]
    detail = "; ".join(part["detail"] for part in errors)
    return Problem(422, "invalid-request", detail, errors=errors).response()


def _invalid_field(part: Mapping[str, Any]) -> dict[str, str]:
    place: Sequence[str | int] = part["loc"]
    where = ".".join(str(step) for step in place[1:])
    message = str(part["msg"])
    if part["type"] == "value_error":
        return {"where": where, "detail": message.removeprefix("Value error, ")}
    if part["type"] == "json_invalid":
        return {"where": "", "detail": f"the body is not JSON: {part.get('ctx', {}).get('error', message)}"}
    return {"where": where, "detail": f"{where or place[0]}: {message[:1].lower()}{message[1:]}"}


async def _on_missing(_request: Request, error: Exception) -> JSONResponse:
    what = next(name for kind, name in _MISSING.items() if isinstance(error, kind))
    text = str(error)
    return Problem(404, f"{what}-not-found", f"{text[:1].upper()}{text[1:]}.").response()


async def _on_conflict(_request: Request, _error: Exception) -> JSONResponse:
    detail = "This Idempotency-Key was used for another request: send a new key with a new request."
    return Problem(409, "idempotency-conflict", detail).response()


async def _on_storage(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StorageError | OSError)
    if isinstance(error, OSError) and error.errno not in _NO_SPACE:
        raise error
    _log.error("storage: %s", error)
    return storage_problem(error).response()


class InternalErrorMiddleware:
    """ASGI middleware that logs an unexpected exception and answers 500, so that the connection lives on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def note_and_send(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, note_and_send)
        except Exception:
            if begun:
                raise
            _log.exception("%s %s failed", scope.get("method"), scope.get("path"))
            detail = "The service failed unexpectedly; its log says why. Try again."
            await Problem(500, "internal-error", detail).response()(scope, receive, send)
