"""Names of the inputs and outputs of exported decoders with a cache."""

from __future__ import annotations

import re
from collections.abc import Iterable

TOKENS = ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds")
# Masks of existing tokens, and positions of new tokens. Both derive from the first new token's position.
MASKS = ("attention_mask", "decoder_attention_mask")
POSITIONS = ("position_ids", "cache_position")
_CACHE = re.compile(r"past(_key_values)?\.|past_(key|value)")
# Inputs with an encoder's keys and values, which stay the same while the decoder runs.
_CROSS_ATTENTION = re.compile(r"encoder|cross")
_PRESENT = re.compile(r"present")


def cache_inputs(names: Iterable[str]) -> list[str]:
    """Return the inputs that hold the keys and values of earlier tokens."""
    return [name for name in names if _CACHE.match(name) and not _CROSS_ATTENTION.search(name)]


def is_present(name: str) -> bool:
    """Return whether an output returns an input of the cache, with or without appended rows."""
    return bool(_PRESENT.match(name))
