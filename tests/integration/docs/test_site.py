"""The documentation site: it builds without a warning, and needs no network to be read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from core.exit_code import ExitCode
from docs.site import reference
from server.access.scopes import ROUTES
from worker.settings import WorkerSettings

ROOT = Path(__file__).parents[3]
# Tags whose addresses a browser loads by itself. Links may lead anywhere.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]* src=["']?(?:https?:)?//|<link[^>]* href=["']?https?://"""
)


# `.ci/run` also runs `make docs`.
@pytest.mark.slow_lane(seconds=5)
def test_the_site_builds_strictly_and_loads_only_its_own_files(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = list(tmp_path.rglob("*.html"))
    assert {"index.html", "tutorial.html", "reference/http.html", "devices/jetson.html"} <= {
        str(page.relative_to(tmp_path)) for page in written
    }
    for page in written:
        assert not LOADED.search(page.read_text()), page
    styles = "".join(style.read_text() for style in tmp_path.rglob("*.css"))
    assert not re.search(r"url\([\"']?https?:|@import", styles)


def test_the_reference_is_complete() -> None:
    pages = reference.pages()
    commands = pages["reference/command-line.md"]
    for name in ("tune", "workers update", "token create", "worker", "migrate"):
        assert f"## tunefarm {name}\n" in commands
    assert all(f"| {code.value} | {code.meaning} |" in commands for code in ExitCode)
    for route in ROUTES.keys() - {"GET /openapi.json"}:
        assert f"## {route.replace(':path}', '}')}" in pages["reference/http.md"]
    for name in WorkerSettings.model_fields:
        assert f"TUNEFARM_WORKER_{name.upper()}`" in pages["reference/settings.md"]
    assert "`OTEL_EXPORTER_OTLP_ENDPOINT`" in pages["reference/settings.md"]
    assert "`tunefarm_step_seconds`" in pages["reference/metrics.md"]
