"""`/` and `/assets`: the dashboard's page and its files, the same for everybody and without a token."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles

from server.dashboard import page

router = APIRouter(include_in_schema=False)

# The files have no versions in their names: a browser asks each time whether they have changed.
_REVALIDATED = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}


class Assets(StaticFiles):
    """The dashboard's files, which a browser never takes for anything but what they are."""

    def __init__(self) -> None:
        super().__init__(directory=page.STATIC)

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_REVALIDATED)
        return response


@router.get("/")
async def dashboard() -> HTMLResponse:
    """Return the dashboard's page."""
    document, policy = page.dashboard()
    return HTMLResponse(
        document,
        headers={**_REVALIDATED, "Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"},
    )
