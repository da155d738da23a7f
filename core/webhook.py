"""Webhooks: their events, addresses, and signatures in the scheme of Standard Webhooks."""

from __future__ import annotations

import base64
import hashlib
import hmac
from enum import StrEnum
from urllib.parse import urlsplit

MAX_URL_CHARS = 2000
MAX_WEBHOOKS = 20
SECRET_PREFIX = "whsec_"


class WebhookEvent(StrEnum):
    """The events of webhooks: a job is done, failed or cancelled; a job published a new artifact."""

    JOB_FINISHED = "job.finished"
    ARTIFACT_FASTER = "artifact.faster"


def check_url(url: str) -> None:
    """Raise ValueError unless the text is a usable HTTP or HTTPS URL."""
    if len(url) > MAX_URL_CHARS:
        raise ValueError(f"a webhook's URL has at most {MAX_URL_CHARS} characters, not {len(url)}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("a webhook's URL has only printable ASCII characters and no spaces")
    try:
        parts = urlsplit(url)
        is_complete = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ValueError(f"the URL {url!r} is not understood: {error}") from error
    if parts.scheme not in ("http", "https") or not is_complete:
        raise ValueError(f"a webhook's URL is like https://example.com/path, not {url!r}")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("a webhook's URL has no user, password or fragment: the signature proves the sender")


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature` of a message: version 1, HMAC-SHA256 in Base64."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    content = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
