"""Keep messages with wrong answers, so that they can be sent again."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

# One kind of failure can occur thousands of times.
KEPT_OF_A_KIND = 5


@dataclass
class Failures:
    """Failures counted by kind. The first few messages of each are written to `folder`, if there is one."""

    say: Callable[[str], None]
    folder: Path | None = None
    kinds: Counter[str] = field(default_factory=Counter)

    def note(self, kind: str, data: bytes) -> None:
        """Note a message whose answer was a failure of this kind."""
        self.kinds[kind] += 1
        if self.kinds[kind] > KEPT_OF_A_KIND:
            return
        name = f"{kind.replace('/', '-').replace(' ', '-')[:60]}-{hashlib.sha256(data).hexdigest()[:12]}"
        self.say(f"  {kind}: {len(data)} bytes, {name}")
        if self.folder is not None:
            (self.folder / name).write_bytes(data)

    def count(self, start: str) -> int:
        """Return the number of failures whose kind begins with `start`."""
        return sum(count for kind, count in self.kinds.items() if kind.startswith(start))
