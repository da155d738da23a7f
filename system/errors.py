"""The error of a setting, in a module that doesn't load the settings library."""

from __future__ import annotations


class SettingsError(Exception):
    """A setting is missing or wrong. The message says in one sentence which, why and what to do."""
