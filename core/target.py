"""Check and rewrite TVM targets in JSON from workers and imported databases. They may only describe a
machine.

Other fields of TVM's targets are refused: `cl-opt` sets any LLVM option, and `fast-math` changes results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

MAX_TARGET_CHARS = 65536
MAX_WORDS = 512
_WORD = re.compile(r"[\w.+-]{1,128}", re.ASCII)
_FEATURE = re.compile(r"[+-][\w.-]{1,63}", re.ASCII)
_TAG = re.compile(r"[\w./-]{0,128}", re.ASCII)
MAX_SIZE = 1 << 40


class TargetRefused(ValueError):
    """A text isn't an accepted target. The message is a clause."""


def rewrite_target(text: str) -> str:
    """Return a target as canonical JSON, rewritten from its checked fields. Raises TargetRefused."""
    if len(text) > MAX_TARGET_CHARS:
        raise TargetRefused(f"the target has more than {MAX_TARGET_CHARS} characters")
    try:
        target = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise TargetRefused("the target is not JSON") from problem
    return json.dumps(_checked(target, has_host=True), sort_keys=True, separators=(",", ":"))


def _checked(target: Any, has_host: bool) -> dict[str, Any]:
    if not isinstance(target, dict):
        raise TargetRefused("the target is not a JSON object")
    if target.get("kind") not in ("llvm", "cuda"):
        raise TargetRefused(f"the target's kind is llvm or cuda, not {ascii(target.get('kind'))[:64]}")
    read = {}
    for option, value in target.items():
        if option == "host" and has_host:
            read[option] = _checked(value, has_host=False)
        elif option not in _OPTIONS:
            raise TargetRefused(f"the target has {ascii(option)[:64]}, which no device needs")
        elif not _OPTIONS[option](value):
            raise TargetRefused(f"the target's {option} makes no sense: {ascii(value)[:64]}")
        else:
            read[option] = value
    return read


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value <= MAX_SIZE


def _is_list_of(value: Any, word: re.Pattern[str]) -> bool:
    is_list = isinstance(value, list) and len(value) <= MAX_WORDS
    return is_list and all(isinstance(one, str) and word.fullmatch(one) for one in value)


# The options that describe a machine, each with a test of its value. The last two are TVM's names for
# targets.
_OPTIONS: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("kind", "mtriple", "mcpu", "mabi", "mfloat-abi", "arch"), _is_word),
    **dict.fromkeys(("num-cores", "vector-width", "thread_warp_size", "max_num_threads"), _is_size),
    **dict.fromkeys(("max_threads_per_block", "max_shared_memory_per_block"), _is_size),
    **dict.fromkeys(("registers_per_block", "l2_cache_size_bytes"), _is_size),
    "mattr": lambda value: _is_list_of(value, _FEATURE),
    "keys": lambda value: _is_list_of(value, _WORD),
    "tag": lambda value: (
        value == "" or _is_word(value.replace("/", "-") if isinstance(value, str) else value)
    ),
}
