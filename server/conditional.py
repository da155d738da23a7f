"""Conditional requests: a client that already has the response gets 304 instead."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel

# The OpenAPI description of a 304 response.
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "The ETag in If-None-Match is current"}}
# Caches must revalidate a response before they use it. Only the client itself may cache it, because it may
# depend on a token.
_CACHING = "private, no-cache"


def is_current(request: Request, etag: str) -> bool:
    """Return whether If-None-Match names this ETag."""
    given = request.headers.get("if-none-match")
    if given is None:
        return False
    tags = {tag.strip().removeprefix("W/") for tag in given.split(",")}
    return etag in tags or "*" in tags


def etag_of(content: bytes) -> str:
    return f'"{sha256(content).hexdigest()[:32]}"'


def headers_of(etag: str) -> dict[str, str]:
    return {"ETag": etag, "Cache-Control": _CACHING}


@dataclass(frozen=True)
class TaggedJson:
    """A JSON response with its ETag, which is the digest of the body."""

    content: bytes
    etag: str

    @classmethod
    def of(cls, body: BaseModel) -> TaggedJson:
        content = body.model_dump_json().encode()
        return cls(content, etag_of(content))

    def to(self, request: Request) -> Response:
        """Return the response: the JSON, or 304 if the client has it."""
        if is_current(request, self.etag):
            return Response(status_code=304, headers=headers_of(self.etag))
        return Response(self.content, media_type="application/json", headers=headers_of(self.etag))
