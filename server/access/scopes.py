"""The table of scopes: each route and gRPC service with the scope that it needs; None: any valid token.

A call that the table doesn't name needs ADMIN. Probes, the dashboard's files and `/install` need no token.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.routing import compile_path

from core.tokens import Scope

# Probes send no token, and get only "ok".
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
# The dashboard's pages and files contain no data.
_PAGES, _FILES = frozenset({"/", "/docs"}), "/assets/"
# Devices install without a token.
_INSTALL = frozenset({"/install", "/install/worker.tar"})

ROUTES: dict[str, Scope | None] = {
    "GET /metrics": Scope.READ,
    "GET /openapi.json": Scope.READ,
    "GET /v1/artifacts/best": Scope.READ,
    "GET /v1/cost-models": Scope.READ,
    "GET /v1/cost-models/{device_class}/versions": Scope.READ,
    "GET /v1/device-classes": Scope.READ,
    "GET /v1/jobs": Scope.READ,
    "GET /v1/jobs/{job_id}": Scope.READ,
    "GET /v1/jobs/{job_id}/artifact": Scope.READ,
    "GET /v1/jobs/{job_id}/events": Scope.READ,
    "GET /v1/jobs/{job_id}/inference": Scope.READ,
    "GET /v1/jobs/{job_id}/outputs": Scope.READ,
    "GET /v1/jobs/{job_id}/quantization": Scope.READ,
    "GET /v1/jobs/{job_id}/quantization/model": Scope.READ,
    "GET /v1/jobs/{job_id}/report": Scope.READ,
    "GET /v1/jobs/{job_id}/tasks": Scope.READ,
    "GET /v1/jobs/{job_id}/tasks/{workload}": Scope.READ,
    "GET /v1/jobs/{job_id}/trials": Scope.READ,
    "GET /v1/models/{sha}/outline": Scope.READ,
    "GET /v1/releases": Scope.READ,
    "GET /v1/releases/{name}": Scope.READ,
    "GET /v1/releases/{name}/artifact": Scope.READ,
    "GET /v1/schedules": Scope.READ,
    "GET /v1/schedules/best": Scope.READ,
    "GET /v1/schedules/export": Scope.READ,
    "DELETE /v1/session": Scope.READ,
    "GET /v1/signing-key": Scope.READ,
    # A device that is installed checks its token.
    "GET /v1/session": None,
    "POST /v1/session": Scope.READ,
    "GET /v1/workers": Scope.READ,
    "GET /v1/workers/{worker_id:path}/noise": Scope.READ,
    "GET /v1/workloads/{workload}": Scope.READ,
    "POST /v1/schedules:query": Scope.READ,
    "POST /v1/datasets": Scope.SUBMIT,
    "PATCH /v1/jobs/{job_id}": Scope.SUBMIT,
    "POST /v1/jobs": Scope.SUBMIT,
    "POST /v1/jobs/{job_id}/inferences": Scope.SUBMIT,
    "POST /v1/jobs/{job_id}:cancel": Scope.SUBMIT,
    "POST /v1/models": Scope.SUBMIT,
    "POST /v1/models/{sha}/outline": Scope.SUBMIT,
    "POST /v1/schedules/import": Scope.SUBMIT,
    "DELETE /v1/jobs/{job_id}": Scope.ADMIN,
    "DELETE /v1/releases/{name}": Scope.ADMIN,
    "DELETE /v1/schedules/imported": Scope.ADMIN,
    "DELETE /v1/tokens/{token_id}": Scope.ADMIN,
    "GET /v1/audit": Scope.ADMIN,
    "DELETE /v1/webhooks/{webhook_id}": Scope.ADMIN,
    "GET /v1/tokens": Scope.ADMIN,
    "GET /v1/webhooks": Scope.ADMIN,
    "GET /v1/webhooks/{webhook_id}/deliveries": Scope.ADMIN,
    "POST /v1/webhooks": Scope.ADMIN,
    "POST /v1/tokens": Scope.ADMIN,
    "POST /v1/workers/{worker_id:path}:calibrate": Scope.ADMIN,
    "POST /v1/workers/{worker_id:path}:drain": Scope.ADMIN,
    "POST /v1/workers/{worker_id:path}:evict": Scope.ADMIN,
    "POST /v1/workers/{worker_id:path}:unreserve": Scope.ADMIN,
    "POST /v1/workers/{worker_id:path}:reserve": Scope.ADMIN,
    "POST /v1/workers/{worker_id:path}:resume": Scope.ADMIN,
    "POST /v1/workers/{worker_id:path}:update": Scope.ADMIN,
    "PUT /v1/releases/{name}": Scope.ADMIN,
}
_SERVICES = {"/tunefarm.v1.Fleet/": Scope.WORKER}
UNKNOWN = "another route"

_COMPILED = [
    (method, *compile_path(path)[:2], scope)
    for route, scope in ROUTES.items()
    for method, path in [route.split(" ")]
]


@dataclass(frozen=True)
class Operation:
    """The operation of an HTTP request.

    `route` is its method and path template as in the OpenAPI document. `subject` is the object that the path
    names; "" without one. `scope` is the needed scope; None if any token will do. `is_write`: it changes
    something.
    """

    route: str
    subject: str
    scope: Scope | None
    is_write: bool


def is_open(path: str) -> bool:
    """Return whether a path needs no token."""
    return path in OPEN_PATHS or path in _PAGES or path.startswith(_FILES) or path in _INSTALL


def operation_of(method: str, path: str) -> Operation:
    """Return the operation of a request. An operation that ROUTES doesn't name is UNKNOWN and needs ADMIN."""
    method = "GET" if method == "HEAD" else method
    operation = _WITHOUT_SUBJECT.get((method, path))
    if operation is not None:
        return operation
    for known, pattern, template, scope in _COMPILED:
        match = pattern.match(path) if known == method else None
        if match is not None:
            return _operation(method, template, "/".join(match.groups()), scope)
    return Operation(UNKNOWN, "", Scope.ADMIN, is_write=method != "GET")


def _operation(method: str, template: str, subject: str, scope: Scope | None) -> Operation:
    is_write = method != "GET" and scope is not Scope.READ
    return Operation(f"{method} {template}", subject, scope, is_write)


# A single regular expression, because trying one after the other takes longer than the rest of the access
# check.
_WITHOUT_SUBJECT = {
    (method, template): _operation(method, template, "", scope)
    for method, _, template, scope in _COMPILED
    if "{" not in template
}


def procedure_scope(method: str) -> Scope:
    """Return the scope that a gRPC method, like "/tunefarm.v1.Fleet/Synchronize", needs."""
    return next((scope for prefix, scope in _SERVICES.items() if method.startswith(prefix)), Scope.ADMIN)
