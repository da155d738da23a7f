"""Requests to users' addresses avoid private networks, and time out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import pytest

from system.outbound import OutboundError, is_allowed, parse_networks, post
from tests.unit.tunefarm.answering import BROKEN, Reply, Request, answering

LOOPBACK = parse_networks("127.0.0.0/8")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1"),
        # IPv4 addresses inside of IPv6 addresses.
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
        *("2001:0:0:0:0:0:80ff:fffe", "2606:4700::5efe:a00:1", "2606:4700::200:5efe:a00:1"),
        # Networks that Python considers public.
        *("fec0::1", "64:ff9b:1:a00:1:808:808:808", "3fff::1", "192.0.0.8", "::ffff:192.0.0.8"),
        *("::127.0.0.1", "::ffff:0:127.0.0.1", "5f00::1"),
        # The host agent of Azure's virtual machines.
        *("168.63.129.16", "::ffff:168.63.129.16"),
    ],
)
def test_no_address_of_a_private_network_is_reached(address: str) -> None:
    assert not is_allowed(ip_address(address), ())


def test_public_addresses_and_allowed_networks_are_reached() -> None:
    for address in ("93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822", "::ffff:93.184.216.34"):
        assert is_allowed(ip_address(address), ())
    networks = parse_networks("10.0.0.0/8, 192.168.1.5,fd00::/8")
    for address in ("10.9.9.9", "192.168.1.5", "fd00::1", "::ffff:10.1.1.1"):
        assert is_allowed(ip_address(address), networks)
    assert not is_allowed(ip_address("192.168.1.6"), networks)
    with pytest.raises(ValueError, match=r"10\.0\.0\.1/8"):
        parse_networks("10.0.0.1/8")


def test_a_request_to_an_allowed_address_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        return Reply(202)

    resolve, asked = socket.getaddrinfo, []

    def counted(host: str, *args: int, **kwargs: int) -> object:
        asked.append(host)
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", counted)
    with answering(answer) as url:
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(OutboundError, match="isn't a public address"):
                post(url.replace("127.0.0.1", host) + "/x", b"{}", {}, (), 5.0)
        assert seen == []
        asked.clear()
        assert post(f"{url}/x?y=z", b"{}", {"webhook-id": "1"}, LOOPBACK, 5.0) == 202
    # Resolving the name twice could return an address other than the checked one.
    assert asked == ["127.0.0.1"]
    (request,) = seen
    assert (request.method, request.path, request.content) == ("POST", "/x?y=z", b"{}")
    assert (request.headers["host"], request.headers["webhook-id"]) == (url.removeprefix("http://"), "1")


def test_a_name_that_is_not_resolved_in_time_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver answers only after the request has failed."""
    has_failed = threading.Event()

    def hang(*_: object, **__: object) -> object:
        assert has_failed.wait(60)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    with pytest.raises(OutboundError, match=r"slow\.example can't be resolved: no answer within 0\.05 s"):
        post("http://slow.example/x", b"{}", {}, LOOPBACK, 0.05)
    has_failed.set()


def test_a_name_with_a_public_and_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(host: str, port: int, **_: int) -> object:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("93.184.216.34", port)), (*kind, ("10.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    with pytest.raises(OutboundError, match=r"example\.com is 10\.0\.0\.1, which isn't a public address"):
        post("http://example.com/", b"", {}, (), 5.0)


def test_redirects_are_not_followed() -> None:
    seen: list[str] = []

    def answer(request: Request) -> Reply:
        seen.append(request.path)
        return Reply(307, headers={"Location": "/elsewhere"})

    with answering(answer) as url:
        assert post(f"{url}/first", b"", {}, LOOPBACK, 5.0) == 307
    assert seen == ["/first"]


@contextmanager
def dripping(line: bytes) -> Iterator[str]:
    """A server that sends a line again and again, slowly, and never ends."""
    is_over = threading.Event()

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            while not is_over.wait(0.05):
                try:
                    connection.sendall(line)
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"//127.0.0.1:{listening.getsockname()[1]}/"
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    ("scheme", "line"), [("http", b"H"), ("http", b"HTTP/1.1 200 OK\r\na: b\r\n"), ("https", b"\x16")]
)
def test_a_slow_receiver_times_out(scheme: str, line: bytes) -> None:
    with dripping(line) as url, pytest.raises(OutboundError, match=r"did not answer within|can't be trusted"):
        post(f"{scheme}:{url}", b"", {}, LOOPBACK, 1.0)


def test_a_broken_or_absent_receiver_is_reported() -> None:
    with answering(lambda _: BROKEN) as url, pytest.raises(OutboundError, match="did not answer"):
        post(url, b"", {}, LOOPBACK, 5.0)
    with pytest.raises(OutboundError, match="Connection refused"):
        post(url, b"", {}, LOOPBACK, 5.0)
    with pytest.raises(OutboundError, match="can't be resolved"):
        post("http://no-such-host.invalid/", b"", {}, LOOPBACK, 5.0)


def test_an_untrusted_certificate_is_rejected() -> None:
    import ssl

    import trustme

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def shake() -> None:
            connection, _ = listening.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

        thread = threading.Thread(target=shake)
        thread.start()
        with pytest.raises(OutboundError, match="can't be trusted"):
            post(f"https://127.0.0.1:{listening.getsockname()[1]}/", b"", {}, LOOPBACK, 5.0)
        thread.join()
