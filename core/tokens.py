"""The scopes and lifetimes of tokens."""

from __future__ import annotations

from enum import StrEnum

# How long a token is valid unless its maker says otherwise, and how long before its end people are warned.
DEFAULT_LIFETIME_S = 90 * 86400.0
WARNED_BEFORE_S = 14 * 86400.0


class Scope(StrEnum):
    """A permission that a token gives. ADMIN gives all of them."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"
    WORKER = "worker"
