"""Failures that a retry can't fix."""

from __future__ import annotations


class PermanentError(Exception):
    """The job can't succeed; the message is one sentence for the user."""
