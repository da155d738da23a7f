"""The names that exporters give to the inputs and outputs of decoders with a cache."""

from __future__ import annotations

import re
from collections.abc import Iterable

TOKENS = ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds")
# What follows from the position of the first new token: which tokens are there, and where the new ones are.
MASKS = ("attention_mask", "decoder_attention_mask")
POSITIONS = ("position_ids", "cache_position")
_CACHE = re.compile(r"past(_key_values)?\.|past_(key|value)")
# Keys and values of an encoder stay the same while the decoder runs.
_HELD = re.compile(r"encoder|cross")
_PRESENT = re.compile(r"present")


def cache_inputs(names: Iterable[str]) -> list[str]:
    """Return the inputs that hold what is computed of earlier tokens."""
    return [name for name in names if _CACHE.match(name) and not _HELD.search(name)]


def is_present(name: str) -> bool:
    """Return whether an output is an input of the cache with what was appended, or as it was."""
    return bool(_PRESENT.match(name))
