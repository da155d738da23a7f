"""Valid addresses of webhooks, and the signatures of messages."""

from __future__ import annotations

import pytest

from core.webhook import check_url, sign


def test_signatures_follow_standard_webhooks() -> None:
    # Computed by the package standardwebhooks 1.1.0.
    signature = sign(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("url", ["https://example.com", "http://a.b:8080/c?d=e", "https://[2001:db8::1]/x"])
def test_a_valid_webhook_url_is_rejected_only_with_a_fragment(url: str) -> None:
    check_url(url)
    with pytest.raises(ValueError, match="URL"):
        check_url(f"{url}#part")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/x",
        "ftp://example.com",
        "file:///etc/passwd",
        "https://",
        "https:///path",
        "https://user@example.com",
        "https://user:secret@example.com",
        "https://example.com/#part",
        "https://example.com/a b",
        "https://example.com/\r\nHost: other",
        "https://ex\u00e4mple.com",
        "https://example.com:99999",
        "https://example.com:0",
        "https://[::1",
        "https://example.com/" + "a" * 2000,
    ],
)
def test_invalid_webhook_urls_are_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        check_url(url)
