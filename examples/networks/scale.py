"""How large a network is: as published, or tiny."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Blocks kept per stage, channels divided by, the image's side in pixels, classes; and of text, how many
    tokens there are and how many words they are of."""

    max_blocks: int
    divisor: int
    size: int
    classes: int
    tokens: int
    words: int

    def channels(self, count: int) -> int:
        return max(8, count // self.divisor)


FULL = Scale(max_blocks=64, divisor=1, size=224, classes=1000, tokens=128, words=30522)
TINY = Scale(max_blocks=1, divisor=8, size=32, classes=10, tokens=16, words=100)
