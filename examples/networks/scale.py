"""The size of a network: as published, or tiny for tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """At most `max_blocks` blocks per stage, and channels divided by `divisor`. Images have `size` x `size`
    pixels, videos `frames` frames of half that size. There are `classes` classes. Texts have `tokens` tokens
    from a vocabulary of `words`."""

    max_blocks: int
    divisor: int
    size: int
    classes: int
    frames: int
    tokens: int
    words: int

    def channels(self, count: int) -> int:
        return max(8, count // self.divisor)


FULL = Scale(max_blocks=64, divisor=1, size=224, classes=1000, frames=16, tokens=128, words=30522)
TINY = Scale(max_blocks=1, divisor=8, size=32, classes=10, frames=4, tokens=16, words=100)
