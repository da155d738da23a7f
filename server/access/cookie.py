"""The cookie that replaces the Authorization header in requests of the dashboard's pages."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response

from server.access.authentication import AccessDenied

_NAME = "tunefarm_session"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def keep_credentials(response: Response, authorization: str, *, secure: bool) -> None:
    """Store an Authorization header in a session cookie. Scripts can't read the cookie, and a browser doesn't
    send it with requests from other sites.
    """
    # A token of the settings may have any characters, so it is encoded.
    value = quote(authorization, safe="")
    response.set_cookie(_NAME, value, httponly=True, samesite="strict", secure=secure)


def forget_credentials(response: Response) -> None:
    """Delete the cookie of `keep_credentials`."""
    response.delete_cookie(_NAME, httponly=True, samesite="strict")


def credentials_of(method: str, headers: Headers) -> str | None:
    """Return the Authorization header of a request, or the one in its cookie.

    Raises AccessDenied for a change by cookie if the request comes from a page of another origin. SameSite
    stops pages of other hosts. Pages of other ports of this host can't read responses, but could send
    changes.
    """
    authorization = headers.get("authorization")
    if authorization is not None:
        return authorization
    cookie = cookie_parser(headers.get("cookie", "")).get(_NAME)
    if not cookie:
        return None
    origin = headers.get("origin")
    if method not in _SAFE_METHODS and not is_own_origin(origin, headers.get("host", "")):
        cause = "a browser's session may change things only from the service's own pages"
        raise AccessDenied(403, "not-from-here", cause, "open the dashboard, or send a token as a header")
    return unquote(cookie)


def is_own_origin(origin: str | None, host: str) -> bool:
    """Return whether an Origin header names the host and port that the request was sent to."""
    try:
        return origin is not None and urlsplit(origin).netloc == host
    except ValueError:
        return False
