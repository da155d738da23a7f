"""The failure of a setting, apart from the library that reads settings."""

from __future__ import annotations


class SettingsError(Exception):
    """A setting is missing or wrong; the message says which, why and what to do, in one sentence."""
