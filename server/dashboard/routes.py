"""`/`, `/docs` and `/assets`: the dashboard's page and its files. They need no token."""

from __future__ import annotations

import mimetypes

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from server.conditional import etag_of, is_current
from server.dashboard import page

router = APIRouter(include_in_schema=False)

# The files' names have no versions, so a browser must revalidate them each time.
_REVALIDATED = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
_TYPES = mimetypes.MimeTypes()
_TYPES.add_type("text/javascript", ".mjs")


@router.get("/")
async def dashboard() -> HTMLResponse:
    """Return the dashboard's page."""
    document, policy = page.dashboard()
    return HTMLResponse(
        document,
        headers={**_REVALIDATED, "Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"},
    )


@router.get("/docs")
async def documentation() -> RedirectResponse:
    """Redirect to the dashboard's page about the HTTP API."""
    return RedirectResponse("./#/api")


@router.get("/assets/{path:path}")
async def asset(path: str, request: Request) -> Response:
    """Return a file of the dashboard, with nosniff: the browser may not guess another content type."""
    content = page.assets().get(path)
    if content is None:
        raise HTTPException(404)
    etag = etag_of(content)
    headers = {**_REVALIDATED, "ETag": etag}
    if is_current(request, etag):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES.guess_type(path)[0], headers=headers)
