"""The cache of measured profiles, so that a restart needs no calibration."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from core.device import Device
from core.profile import VERSION, Profile

MAX_BYTES = 64 << 10


class ProfileCache:
    """Profiles by device class, in memory and in files. There is one file for each class and version of the
    calibration.

    If files can't be written, profiles are kept in memory only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._in_memory: dict[str, Profile] = {}

    def get(self, device: Device) -> Profile | None:
        """Return the device's profile; None if there is none or its file is damaged."""
        profile = self._in_memory.get(device.key)
        if profile is not None:
            return profile
        try:
            with self._file(device).open("rb") as file:
                return Profile.from_json(file.read(MAX_BYTES).decode())
        except (OSError, ValueError):
            return None

    def put(self, device: Device, profile: Profile) -> None:
        self._in_memory[device.key] = profile
        # Written under a temporary name first, so that a reader never sees half a profile.
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "w") as file:
                file.write(profile.to_json())
            Path(name).replace(self._file(device))

    def _file(self, device: Device) -> Path:
        return self._folder / f"{device.key}-{VERSION}.json"
