"""Text that is safe to print: strangers' texts reach the terminals and the logs of others."""

from __future__ import annotations

import re

# All control characters but tab and newline. A terminal takes an escape, or its 8-bit form, as a command.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def without_controls(text: str) -> str:
    """Return a text with U+FFFD in place of control characters that a terminal would obey."""
    return _CONTROLS.sub("\ufffd", text)
