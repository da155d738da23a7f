"""`/install` and `/install/worker.tar`: the files that a device installs. They need no token."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from server.context import ContextDep
from server.install.worker_archive import worker_archive
from server.problems import Problem

router = APIRouter(include_in_schema=False)

_SCRIPT = Path(__file__).parent / "install.sh"
_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")
_HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}


@router.get("/install")
async def script(request: Request, context: ContextDep) -> PlainTextResponse:
    """Return the install script, with the address of the request as the service's address."""
    host, port = request.url.hostname or "", request.url.port
    host = f"[{host}]" if ":" in host else host
    if not _HOST.fullmatch(host):
        raise Problem(
            400, "bad-request", "The Host header names no host: call the service by its name or address."
        )
    settings = context.settings
    values = {
        "service": f"{request.url.scheme}://{host}" + (f":{port}" if port else ""),
        "workers": f"{host}:{settings.grpc_port}",
        "tls": "1" if settings.tls else "",
        "token_needed": "" if settings.open else "1",
        "version": context.version,
    }
    text = _SCRIPT.read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", shlex.quote(value))
    return PlainTextResponse(text, headers=_HEADERS)


@router.get("/install/worker.tar")
def archive() -> Response:
    """Return the archive that the install script uses."""
    try:
        data = worker_archive()
    except PackageNotFoundError as error:
        raise Problem(
            404,
            "not-installed",
            "This service runs from files that were not installed with pip: it has no wheel to hand out.",
        ) from error
    return Response(data, media_type="application/x-tar", headers=_HEADERS)
