"""Take the dashboard's pictures of a real job: `tunefarm up`, a job, and then, with Chromium installed,

python -m docs.site.pictures JOB --server http://127.0.0.1:8760
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parents[1] / "images"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", help="its id, whole")
    parser.add_argument("--server", default="http://127.0.0.1:8760")
    given = parser.parse_args(arguments)
    program = shutil.which("chromium")
    if program is None:
        parser.error("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        job = f"{given.server}/#/jobs/{given.job}"
        _take(browser, f"{given.server}/#/jobs", "dashboard-jobs", (885, 465))
        _take(browser, job, "dashboard-job", (885, 1170))
        _take(browser, job, "dashboard-phone", (390, 1150), dark=True)
        browser.close()


def _take(browser: Browser, address: str, name: str, size: tuple[int, int], dark: bool = False) -> None:
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(address)
    page.get_by_role("heading", level=1).wait_for()
    # Charts come when their numbers do.
    page.wait_for_load_state("networkidle")
    page.screenshot(path=IMAGES / f"{name}.png")
    context.close()


if __name__ == "__main__":
    main()
