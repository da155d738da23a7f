"""The dashboard's page and the session of a browser, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from http.cookies import SimpleCookie

import httpx
import pytest

from .conftest import BOOTSTRAP, Service, bearer


@pytest.fixture
def browser(guarded: Service) -> Iterator[httpx.Client]:
    """A client that sent a token once, and has only the cookie since."""
    with httpx.Client(base_url=guarded.url, trust_env=False, verify=False) as client:
        answer = client.post("/v1/session", headers=bearer(BOOTSTRAP))
        assert answer.json() == {"who": "bootstrap", "scopes": ["admin"]}
        yield client


def kind(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json()["type"]).removeprefix("urn:tunefarm:problem:")


def test_a_cookie_replaces_the_token(browser: httpx.Client) -> None:
    assert browser.get("/v1/jobs").json() == {"items": [], "next": None}
    assert browser.get("/v1/session").json()["who"] == "bootstrap"


def test_scripts_and_other_sites_cannot_use_the_cookie(guarded: Service) -> None:
    answer = guarded.http.post("/v1/session", headers=bearer(BOOTSTRAP))
    [cookie] = SimpleCookie(answer.headers["set-cookie"]).values()
    attributes = {name: value for name, value in cookie.items() if value}
    assert attributes == {"path": "/", "httponly": True, "samesite": "strict"}
    guarded.http.cookies.clear()


@pytest.mark.parametrize("origin", [None, "http://evil.example", "http://127.0.0.1:1", "null", "http://["])
def test_with_a_cookie_only_own_pages_change_something(browser: httpx.Client, origin: str | None) -> None:
    headers = {} if origin is None else {"Origin": origin}
    answer = browser.post("/v1/tokens", json={"name": "mine", "scopes": ["admin"]}, headers=headers)
    assert kind(answer) == (403, "not-from-here")
    own = {"Origin": str(browser.base_url).rstrip("/")}
    assert browser.post("/v1/schedules:query", json={"workloads": []}, headers=own).status_code == 422


def test_a_token_in_the_header_counts_before_the_cookie(browser: httpx.Client) -> None:
    answer = browser.get("/v1/jobs", headers=bearer("another one"))
    assert kind(answer) == (401, "token-needed")


def test_a_deleted_cookie_is_rejected(browser: httpx.Client) -> None:
    own = {"Origin": str(browser.base_url).rstrip("/")}
    assert browser.delete("/v1/session", headers=own).status_code == 204
    assert kind(browser.get("/v1/jobs")) == (401, "token-needed")


def test_wrong_tokens_get_no_cookie(guarded: Service) -> None:
    answer = guarded.http.post("/v1/session", headers=bearer("wrong"))
    assert kind(answer) == (401, "token-needed")
    assert "set-cookie" not in answer.headers


def test_the_page_runs_only_its_own_files(guarded: Service) -> None:
    answer = guarded.http.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in str(policy)
    for path in ("/assets/dashboard.js", "/assets/dashboard.css", "/assets/vendor/preact.mjs"):
        file = guarded.http.get(path)
        assert file.status_code == 200
        assert file.headers["x-content-type-options"] == "nosniff"
        assert guarded.http.get(path, headers={"If-None-Match": file.headers["etag"]}).status_code == 304


def test_head_returns_a_file_without_its_content(guarded: Service) -> None:
    path = "/assets/dashboard.css"
    whole, asked = guarded.http.get(path), guarded.http.head(path)
    assert (asked.status_code, asked.content) == (200, b"")
    for name in ("content-type", "content-length", "etag", "cache-control"):
        assert asked.headers[name] == whole.headers[name]
    assert guarded.http.head("/assets/vendor").status_code == 404


@pytest.mark.parametrize(
    "path", ["/assets/../page.py", "/assets/%2e%2e/page.py", "/assets/vendor", "/assets/app.js"]
)
def test_nothing_else_is_served_from_the_folder(guarded: Service, path: str) -> None:
    assert guarded.http.get(path).status_code in (401, 404)
