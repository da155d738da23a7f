"""The scopes of tokens."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """A permission that a token gives. ADMIN gives all of them."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"
    WORKER = "worker"
