"""The profiles that this machine was found to have, kept so that a restart needs no calibration."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from core.device import Device
from core.profile import VERSION, Profile

MAX_BYTES = 64 << 10


class ProfileCache:
    """In files of a folder, one for each device class and version of the calibration, and in memory where
    nothing can be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Profile] = {}

    def find(self, device: Device) -> Profile | None:
        """None for what is not there, or damaged."""
        known = self._known.get(device.key)
        if known is not None:
            return known
        try:
            with self._file(device).open("rb") as file:
                return Profile.from_json(file.read(MAX_BYTES).decode())
        except (OSError, ValueError):
            return None

    def keep(self, device: Device, profile: Profile) -> None:
        self._known[device.key] = profile
        # Written aside, so that nobody reads the half of it.
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "w") as file:
                file.write(profile.to_json())
            Path(name).replace(self._file(device))

    def _file(self, device: Device) -> Path:
        return self._folder / f"{device.key}-{VERSION}.json"
