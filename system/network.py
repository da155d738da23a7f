"""Network addresses."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Tell whether a host's name or address means this machine and can't be reached from others."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
