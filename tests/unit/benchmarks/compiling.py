"""A model for processes, which import this module."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.timing.contestants import Arrays, Bind


@dataclass(frozen=True)
class Compiling:
    """A model that takes `seconds` to compile, at its first call."""

    seconds: float

    def load(self, _threads: int) -> Bind:
        def bind(_inputs: Arrays) -> Callable[[], Any]:
            return lambda: time.sleep(self.seconds)

        return bind
