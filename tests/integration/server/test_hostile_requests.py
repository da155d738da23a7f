"""Strange heads and bodies are rejected or answered, and none writes a line to the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from .artifacts import artifact, publish, repr_digest
from .conftest import Service, Worker, launch
from .raw_http import answer, connection

JOBS = "GET /v1/jobs HTTP/1.1"
LOCAL = "Host: localhost"
POST = "POST /v1/jobs HTTP/1.1"
CHUNKED = "Transfer-Encoding: chunked"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests, because no request changes anything."""
    service, stop = launch(tmp_path_factory.mktemp("service"))
    yield service
    stop()


def sent(service: Service, *lines: str, body: bytes = b"", end: str = "\r\n") -> tuple[int, str]:
    """Send a request with these lines; return the response's status and its whole text."""
    head = "".join(f"{line}{end}" for line in (*lines, "Connection: close", ""))
    with connection(service) as client:
        client.sendall(head.encode("latin-1") + body)
        text = answer(client)
    return int(text.split()[1]), text


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        # Two parsers may see different requests here (request smuggling).
        ((JOBS, LOCAL, "X: a\r\n b"), 400),
        ((JOBS, "Host: evil.example\r\n localhost"), 400),
        ((JOBS, LOCAL, "Authorization : x"), 400),
        ((JOBS, LOCAL, "X: a\0b"), 400),
        ((POST, LOCAL, "Content-Length: 5", CHUNKED), 400),
        ((POST, LOCAL, "Content-Length: 5", "Content-Length: 6"), 400),
        ((POST, LOCAL, "Transfer-Encoding: chunked, identity"), 400),
        *(
            ((POST, LOCAL, f"Content-Length: {n}"), 400)
            for n in ("+5", "-1", "0x5", "5 5", "9" * 30, "", "\xb2")
        ),
        (("CONNECT evil.example:80 HTTP/1.1", LOCAL), 400),
        (("PRI * HTTP/2.0",), 400),
        (("OPTIONS * HTTP/1.1", LOCAL), 404),
        (("TRACE /v1/jobs HTTP/1.1", LOCAL), 405),
        # Hosts that aren't this machine, or that a parser could mistake for another.
        ((JOBS,), 403),
        ((JOBS, LOCAL, "Host: evil.example"), 403),
        ((JOBS, "Host: evil.example", LOCAL), 403),
        *(
            ((JOBS, f"Host: {host}"), 403)
            for host in (
                *("localhost,evil.example", "localhost@evil.example", "evil.example\\@localhost", "[::1]x"),
                *(
                    "evil.example#localhost",
                    "localhost.",
                    "localhost:",
                    "127.1",
                    "0",
                    "\xff",
                    "[::1",
                    "[]",
                    "",
                ),
            )
        ),
        *(((JOBS, f"Host: {host}"), 200) for host in ("LocalHost", "127.0.0.1:1", "[::1]:8760", "127.9.9.9")),
        # Large or odd, but harmless.
        ((JOBS, LOCAL, *("a:b" for _ in range(9000))), 200),
        ((JOBS, LOCAL, *("a:b" for _ in range(20_000))), 431),
        ((f"GET /{'a' * 70_000} HTTP/1.1", LOCAL), 431),
        ((JOBS, LOCAL, "X-HTTP-Method-Override: DELETE", "Upgrade: h2c", "TE: trailers"), 200),
        ((JOBS, LOCAL, "X-Forwarded-For: " + "1.2.3.4," * 7000, "X-Forwarded-Proto: javascript"), 200),
        ((JOBS, LOCAL, "traceparent: " + "0" * 50_000, "baggage: " + "a=b," * 1000), 200),
        (("GET /v1/jobs/%ff%00%0a%zz HTTP/1.1", LOCAL), 404),
        (("GET /v1/jobs/a%0d%0aSet-Cookie:x/report HTTP/1.1", LOCAL), 404),
        ((f"GET /{'a' * 60_000} HTTP/1.1", LOCAL), 404),
        ((POST, LOCAL, "Idempotency-Key: \x01"), 400),
    ],
)
def test_a_strange_head_is_refused_or_answered(
    service: Service, lines: tuple[str, ...], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    found, text = sent(service, *lines)
    assert found == status, text[:300]
    assert "\r\nSet-Cookie" not in text
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    assert service.http.get("/healthz").is_success


@pytest.mark.parametrize("key", ["", "a" * 257, "\xa0", "\xad"])
def test_a_strange_idempotency_key_is_refused(service: Service, key: str) -> None:
    headers = {b"Idempotency-Key": key.encode("latin-1")}
    refused = service.http.post("/v1/jobs", json={"model": "0" * 64, "trials": 1}, headers=headers)
    assert (refused.status_code, refused.json()["errors"][0]["where"]) == (422, "idempotency-key")


def test_invalid_line_ends_are_rejected(service: Service) -> None:
    assert sent(service, JOBS, LOCAL, end="\n")[0] == 400


FIELDS = b'{"model":"?","name":"?","url":"?","job":"?","target":"?","workloads":["?"],"trials":1}'
BODIES = {
    "half a character": FIELDS.replace(b"?", rb"\ud800"),
    "null character": FIELDS.replace(b"?", rb"a\u0000"),
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000,
    "no number": b'{"trials":NaN,"limit":NaN}',
    "endless": b'{"trials":1e999,"minutes":-1e999}',
    "long number": b'{"trials":' + b"9" * 5000 + b"}",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "no UTF-8": b'{"a":"\xff"}',
    "nothing": b"",
    "null": b"null",
    "text": b'"x"',
    "mark": b"\xef\xbb\xbf{}",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_strange_body_is_refused_by_every_route(service: Service, name: str) -> None:
    headers = {"Content-Type": "application/json"}
    paths = (
        "/v1/jobs",
        "/v1/tokens",
        "/v1/webhooks",
        "/v1/schedules:query",
        "/v1/models",
        "/v1/schedules/import",
    )
    for method, path in (*(("POST", path) for path in paths), ("PUT", "/v1/releases/x")):
        refused = service.http.request(method, path, content=BODIES[name], headers=headers)
        assert refused.status_code in (400, 404, 413, 422), (path, refused.text)
        assert refused.headers["content-type"] == "application/problem+json"


def test_a_download_has_only_the_expected_headers(service: Service, worker: Worker) -> None:
    """Ranges aren't supported: a client that requests one gets the whole file, with its digest."""
    worker.call()
    data = artifact()
    job_id = publish(service, worker, data, 1e-3)
    path = f"/v1/jobs/{job_id}/artifact"
    for strange in ("bytes=0-1", "bytes=" + "0-," * 15_000, "bytes=-1", "lines=1", "bytes=9-1"):
        whole = service.http.get(
            path, headers={"Range": strange, "If-Range": "x", "Want-Repr-Digest": "md5=9"}
        )
        assert (whole.status_code, whole.content) == (200, data)
        assert whole.headers["repr-digest"] == repr_digest(data)
    etag = whole.headers["etag"]
    for tags, status in (
        (etag, 304),
        (f"W/{etag}", 304),
        ("*", 304),
        ('"a",' * 15_000 + etag, 304),
        ('"a",' * 15_000, 200),
        (etag[1:-1], 200),
        (",,,", 200),
        ("\xff", 200),
    ):
        kept = service.http.get(path, headers={b"If-None-Match": tags.encode("latin-1")})
        assert kept.status_code == status, tags[:80]
    assert whole.headers["content-disposition"] == f'attachment; filename="{job_id}.tar"'


@pytest.mark.parametrize("name", ["..", ".x", "a%2fb", "a%0d%0ax", "a%00", "%ff", "a%20b", "a" * 65, "%22"])
def test_a_release_has_a_plain_name(service: Service, name: str) -> None:
    for method, path in (("PUT", ""), ("GET", ""), ("GET", "/artifact"), ("DELETE", "")):
        body = json.dumps({"job": "x"}).encode()
        head = (f"{method} /v1/releases/{name}{path} HTTP/1.1", LOCAL, f"Content-Length: {len(body)}")
        status, text = sent(service, *head, "Content-Type: application/json", body=body)
        assert status in (404, 405, 422), text[:300]
    assert service.http.get("/v1/releases").json() == {"items": []}
