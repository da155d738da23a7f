"""Take the pictures of the documents, with Chromium installed, from a running service:

python -m docs.site.pictures JOB --server http://127.0.0.1:8760
python -m docs.site.pictures JOB --server http://HOST:8760 --token TOKEN --tutorial mobilenet_v2-tuned

The first takes the dashboard's, of `make demo`'s job. The second takes the tutorial's, where it was followed.
"""

from __future__ import annotations

import argparse
import html
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).parents[1] / "images"
# Screens have few colours, and a palette halves a file.
COLOURS = 128
_TERMINAL = (
    "margin:0;padding:14px 16px;background:#17202c;color:#e7ebf1;white-space:pre-wrap;"
    "font:13px/1.5 ui-monospace,Menlo,Consolas,monospace"
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", help="its id, whole")
    parser.add_argument("--server", default="http://127.0.0.1:8760")
    parser.add_argument("--token", default="", help="signs in where the service asks for one")
    parser.add_argument("--tutorial", metavar="FOLDER", help="the compiled model that the tutorial made")
    given = parser.parse_args(arguments)
    program = shutil.which("chromium")
    if program is None:
        parser.error("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        if given.tutorial:
            _take_tutorial(browser, given.server, given.job, given.token, given.tutorial)
        else:
            _take_dashboard(browser, given.server, given.job)
        browser.close()


def _take_dashboard(browser: Browser, server: str, job: str) -> None:
    for name, address, size, dark in (
        ("jobs", "#/jobs", (1000, 500), False),
        ("job", f"#/jobs/{job}", (885, 1170), False),
        ("phone", f"#/jobs/{job}", (390, 1150), True),
    ):
        page = _page(browser, size, dark)
        _show(page, f"{server}/{address}")
        _save(page, f"dashboard-{name}")


def _take_tutorial(browser: Browser, server: str, job: str, token: str, folder: str) -> None:
    page = _page(browser, (1000, 420))
    page.goto(server)
    page.get_by_label("Token").wait_for()
    _save(page, "tutorial-sign-in")
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    page.get_by_label("Token").wait_for(state="detached")
    for name, address, height in (("devices", "#/devices", 520), ("job", f"#/jobs/{job}", 900)):
        page.set_viewport_size({"width": 1000, "height": height})
        _show(page, f"{server}/{address}")
        _save(page, f"tutorial-{name}")
    environment = os.environ | {"TUNEFARM_SERVER": server, "TUNEFARM_TOKEN": token}
    terminal = _page(browser, (1000, 40))
    told = _output([sys.executable, "-m", "tunefarm", "jobs"], environment)
    _terminal(terminal, f"$ tunefarm jobs\n{told}", "tutorial-terminal")
    told = _output([sys.executable, "-m", "examples.run_artifact", folder], environment)
    _terminal(terminal, f"$ python run_artifact.py {Path(folder).name}\n{told}", "tutorial-run")


def _page(browser: Browser, size: tuple[int, int], dark: bool = False) -> Page:
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    return context.new_page()


def _show(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("heading", level=1).wait_for()
    # Charts come when their numbers do.
    page.wait_for_load_state("networkidle")


def _output(command: Sequence[str], environment: dict[str, str]) -> str:
    environment = environment | {"COLUMNS": "110", "NO_COLOR": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def _terminal(page: Page, text: str, name: str) -> None:
    """Save a terminal with a command and its output."""
    page.set_content(f'<body style="margin:0"><pre style="{_TERMINAL}">{html.escape(text.rstrip())}</pre>')
    _save(page, name, whole=True)


def _save(page: Page, name: str, whole: bool = False) -> None:
    picture = Image.open(io.BytesIO(page.screenshot(full_page=whole))).convert("RGB")
    picture.quantize(COLOURS, Image.Quantize.FASTOCTREE).save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
