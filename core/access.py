"""Access: what a token allows."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """What a token allows. ADMIN allows everything."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"
    WORKER = "worker"
