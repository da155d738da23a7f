"""Open pages of the dashboard in Chromium, each time with an empty cache, and time them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, Error, sync_playwright

from tests import services

# Stores the time at which the page fulfils a condition, has painted it, and is idle for the next task.
_WATCH = """
new MutationObserver((_, observer) => {
  if (!(%s)) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => {
    document.documentElement.dataset.interactiveMs = performance.now();
  }));
}).observe(document, { childList: true, subtree: true });
"""
_TIMEOUT_MS = 20_000


class PageLoadError(Exception):
    """A page did not reach the expected state. The message is one sentence."""


@dataclass(frozen=True)
class PageLoad:
    """The time from the beginning of the navigation until the page is interactive, and the bytes received."""

    interactive_s: float
    num_bytes: int


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a browser without a window. Raises Missing."""
    program = shutil.which("chromium")
    if program is None:
        raise services.Missing("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def load_page(browser: Browser, url: str, token: str, until: str) -> PageLoad:
    """Open `url` with an empty cache. The page is interactive once the JavaScript expression `until` is true,
    the page is painted, and the next task runs. Raises PageLoadError."""
    context = browser.new_context(extra_http_headers={"Authorization": f"Bearer {token}"})
    page = context.new_page()
    try:
        page.add_init_script(_WATCH % until)
        network = context.new_cdp_session(page)
        network.send("Network.enable")
        received: list[float] = []

        def count(event: dict[str, Any]) -> None:
            received.append(event["encodedDataLength"])

        network.on("Network.loadingFinished", count)
        page.goto(url, wait_until="commit")
        # The pages' Content-Security-Policy forbids Playwright's wait for an expression.
        page.locator("html[data-interactive-ms]").wait_for(state="attached", timeout=_TIMEOUT_MS)
        interactive_ms = page.locator("html").get_attribute("data-interactive-ms")
        return PageLoad(float(interactive_ms or "nan") / 1e3, round(sum(received)))
    except Error as error:
        shown = page.inner_text("body")[:300]
        raise PageLoadError(f"{url} was not what it should be: {error.message}; it shows: {shown}") from error
    finally:
        context.close()
