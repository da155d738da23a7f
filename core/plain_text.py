"""Make untrusted text safe to print on terminals and in logs."""

from __future__ import annotations

import re

# All control characters but tab and newline. Terminals execute sequences that begin with an escape or its
# 8-bit form.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def without_controls(text: str) -> str:
    """Return a text with U+FFFD in place of control characters that a terminal would execute."""
    return _CONTROLS.sub("\ufffd", text)
