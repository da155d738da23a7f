"""The scopes and lifetimes of tokens."""

from __future__ import annotations

from enum import StrEnum

# The default lifetime of a token, and the time before its end at which warnings begin, in seconds.
DEFAULT_LIFETIME_S = 90 * 86400.0
WARNED_BEFORE_S = 14 * 86400.0


class Scope(StrEnum):
    """A permission that a token gives. ADMIN gives all of them."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"
    WORKER = "worker"
