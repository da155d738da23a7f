"""HTTP requests to users' addresses. They can't reach private networks unless the operator allows it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

# Gateways translate these networks to the IPv4 address in the last 32 bits.
_NAT64 = ip_network("64:ff9b::/96")
# An interface with this identifier, in any network, is a tunnel to the IPv4 address in the last 32 bits.
_ISATAP, _ISATAP_MASK = 0x5EFE << 32, 0xFDFF_FFFF << 32
# Site-local networks, and networks without hosts, for which Python's `is_global` is true. The last one is the
# host of Azure's virtual machines.
_NOT_PUBLIC = tuple(
    map(
        ip_network,
        ("fec0::/10", "64:ff9b:1::/48", "3fff::/20", "192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32"),
    )
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class OutboundError(Exception):
    """The request could not be sent. The message is one sentence for the user."""


def post(
    url: str, body: bytes, headers: Mapping[str, str], allowed: Sequence[Network], timeout_s: float
) -> int:
    """Send a POST request. Return the status of the response, without reading its body.

    The host's name is resolved once, and the connection goes to the address that was checked. Redirects
    aren't followed. The whole request takes at most `timeout_s` seconds, the look-up of the name included.
    Raises OutboundError.
    """
    ends_at_s = time.monotonic() + timeout_s
    parts = urlsplit(url)
    host, is_https = parts.hostname or "", parts.scheme == "https"
    family, address = _checked_address(host, parts.port or (443 if is_https else 80), allowed, timeout_s)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        with socket.socket(family, socket.SOCK_STREAM) as raw:
            raw.settimeout(_left_s(ends_at_s))
            raw.connect(address)
            with (
                _ended_after(_left_s(ends_at_s), raw) as is_ended,
                _secured(raw, host, is_https) as connected,
            ):
                connection = http.client.HTTPConnection(host)
                connection.sock, connection.auto_open = connected, 0
                own = {"Host": parts.netloc, "Connection": "close"}
                connection.request("POST", target, body, {**headers, **own})
                status = connection.getresponse().status
                # Headers that were cut off look complete.
                if is_ended.is_set():
                    raise TimeoutError("it sends its headers slowly")
                return status
    except ssl.SSLError as error:
        raise OutboundError(f"{host} can't be trusted: {error.reason or error}") from error
    except (OSError, http.client.HTTPException, AttributeError) as error:
        # http.client raises AttributeError if another thread has closed the connection.
        cause = getattr(error, "strerror", None) or str(error) or "the connection was ended"
        raise OutboundError(f"{host} did not answer within {timeout_s:g} s: {cause}") from error


def is_allowed(address: Address, allowed: Sequence[Network]) -> bool:
    """Return whether requests may go to an address: it is public, or the operator allows it."""
    reached = _embedded_ipv4(address)
    if any(one in network for network in allowed for one in (address, reached)):
        return True
    if any(one in network for network in _NOT_PUBLIC for one in (address, reached)):
        return False
    return reached.is_global and not reached.is_multicast and not reached.is_reserved


def parse_networks(text: str) -> tuple[Network, ...]:
    """Return the networks of a list like `10.0.0.0/8,192.168.1.5`. Raises ValueError."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def _embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address embeds; the address itself if it embeds none."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64 or int(address) & _ISATAP_MASK == _ISATAP:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or teredo or address


def _left_s(ends_at_s: float) -> float:
    """Return the seconds until a time of `time.monotonic`. Raises TimeoutError if it has passed."""
    left_s = ends_at_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s


def _resolve(host: str, port: int, timeout_s: float) -> list[Any]:
    """Return the result of `socket.getaddrinfo`, which has no timeout. Also raises TimeoutError.

    A look-up that takes too long goes on in its thread until the system's resolver gives up.
    """
    found: Future[list[Any]] = Future()

    def look_up() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=look_up, daemon=True).start()
    try:
        return found.result(timeout_s)
    except TimeoutError as error:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from error


def _checked_address(
    host: str, port: int, allowed: Sequence[Network], timeout_s: float
) -> tuple[int, tuple[str, int]]:
    """Return the family and the address to connect to. Raises OutboundError if any of the host's addresses
    isn't allowed."""
    try:
        found = _resolve(host, port, timeout_s)
    except (OSError, UnicodeError) as error:
        raise OutboundError(f"the name {host} can't be resolved: {error}") from error
    for *_, address in found:
        number = str(address[0]).partition("%")[0]
        if not is_allowed(ip_address(number), allowed):
            raise OutboundError(
                f"{host} is {number}, which isn't a public address: name another host, or allow the network "
                "by TUNEFARM_WEBHOOK_ALLOW"
            )
    family, *_, address = found[0]
    return family, address


@contextlib.contextmanager
def _ended_after(timeout_s: float, connected: socket.socket) -> Iterator[threading.Event]:
    """Close a connection after `timeout_s` seconds, and then set the yielded event."""
    is_ended = threading.Event()
    with connected.dup() as own:

        def end() -> None:
            is_ended.set()
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            yield is_ended
        finally:
            timer.cancel()
            timer.join()


def _secured(raw: socket.socket, host: str, is_https: bool) -> socket.socket:
    return ssl.create_default_context().wrap_socket(raw, server_hostname=host) if is_https else raw
