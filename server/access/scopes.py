"""Which scope a call needs. What stands in no line here needs ADMIN; the probes need nothing."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.routing import compile_path

from core.access import Scope

# Probes carry no token, and tell nothing but "up".
OPEN_PATHS = frozenset({"/healthz", "/readyz"})

ROUTES = {
    "GET /metrics": Scope.READ,
    "GET /openapi.json": Scope.READ,
    "GET /v1/cost-models": Scope.READ,
    "GET /v1/device-classes": Scope.READ,
    "GET /v1/jobs": Scope.READ,
    "GET /v1/jobs/{job_id}": Scope.READ,
    "GET /v1/jobs/{job_id}/artifact": Scope.READ,
    "GET /v1/jobs/{job_id}/events": Scope.READ,
    "GET /v1/jobs/{job_id}/tasks": Scope.READ,
    "GET /v1/schedules/best": Scope.READ,
    "GET /v1/schedules/export": Scope.READ,
    "GET /v1/workers": Scope.READ,
    "POST /v1/schedules:query": Scope.READ,
    "POST /v1/jobs": Scope.SUBMIT,
    "POST /v1/jobs/{job_id}:cancel": Scope.SUBMIT,
    "POST /v1/models": Scope.SUBMIT,
    "POST /v1/schedules/import": Scope.SUBMIT,
    "DELETE /v1/jobs/{job_id}": Scope.ADMIN,
    "DELETE /v1/tokens/{token_id}": Scope.ADMIN,
    "GET /v1/audit": Scope.ADMIN,
    "GET /v1/tokens": Scope.ADMIN,
    "POST /v1/tokens": Scope.ADMIN,
    "POST /v1/workers/{worker_id:path}:calibrate": Scope.ADMIN,
    "POST /v1/workers/{worker_id:path}:drain": Scope.ADMIN,
    "POST /v1/workers/{worker_id:path}:evict": Scope.ADMIN,
    "POST /v1/workers/{worker_id:path}:resume": Scope.ADMIN,
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
    """What a request asks for: a route, as it stands in the OpenAPI document, the object in its path if there
    is one, and the scope that this needs. `changes`: it is there to change something."""

    route: str
    subject: str
    scope: Scope
    changes: bool


def operation_of(method: str, path: str) -> Operation:
    asked = "GET" if method == "HEAD" else method
    for known, pattern, template, scope in _COMPILED:
        match = pattern.match(path) if known == asked else None
        if match is not None:
            changes = asked != "GET" and scope is not Scope.READ
            return Operation(f"{asked} {template}", "/".join(match.groups()), scope, changes)
    return Operation(UNKNOWN, "", Scope.ADMIN, changes=asked != "GET")


def procedure_scope(method: str) -> Scope:
    """The scope that a gRPC method, like "/tunefarm.v1.Fleet/Synchronize", needs."""
    return next((scope for start, scope in _SERVICES.items() if method.startswith(start)), Scope.ADMIN)
