"""The folder of tunefarm's packages, for the processes that it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[1]


def python_path(environment: Mapping[str, str]) -> str:
    """Return an environment's PYTHONPATH, preceded by the absolute path of tunefarm's packages."""
    return os.pathsep.join([str(PACKAGES), *filter(None, [environment.get("PYTHONPATH")])])
