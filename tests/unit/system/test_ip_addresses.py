"""Recognize the addresses of this machine."""

from __future__ import annotations

import pytest

from system.ip_addresses import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback_addresses_are_recognized(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.7", "0.0.0.0", "::", "fe80::1", "farm", "localhost.farm", ""])
def test_other_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
