"""The HTML documents of the dashboard and of reports, with their Content-Security-Policy.

Our modules are joined into one. The document's import map tells it where the libraries of `static/vendor`
are. So the same module works when the service serves it and inside a report.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from html import escape
from pathlib import Path

from server.dashboard.modules import joined

STATIC = Path(__file__).parent / "static"
LIBRARIES = {
    "preact": "vendor/preact.mjs",
    "preact/hooks": "vendor/hooks.mjs",
    "htm": "vendor/htm.mjs",
    "uplot": "vendor/uPlot.min.mjs",
    "d3-hierarchy": "vendor/d3-hierarchy.min.mjs",
}
_STYLES = ("vendor/uPlot.min.css", "style.css")

# This script runs before the modules are loaded, so that requests and modules load at the same time. `api.js`
# uses the responses.
_ASK_EARLY = """
const job = /^#\\/?(jobs\\/[^/]+)$/.exec(location.hash);
const ofJob = job ? ["/trials", "/tasks", ""].map((end) => `v1/${job[1]}${end}`) : [];
const paths = [...ofJob, ...(job ? ["v1/device-classes"] : []), "v1/session"];
globalThis.asked = new Map(paths.map((path) => [path, fetch(path)]));
"""

_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>tunefarm</title>
{head}
</head>
<body data-start="{start}">
<div id="app"></div>
<noscript>This page needs JavaScript. Everything that it shows is also answered by the commands
<code>tunefarm jobs</code> and <code>tunefarm workers</code>.</noscript>
{data}</body>
</html>
"""


@cache
def assets() -> dict[str, bytes]:
    """Return the files that the dashboard's page loads, by their paths below `/assets/`."""
    files = {path: (STATIC / path).read_bytes() for path in (*LIBRARIES.values(), "icon.svg")}
    return files | {"dashboard.js": _script().encode(), "dashboard.css": _styles().encode()}


@cache
def dashboard() -> tuple[str, str]:
    """Return the dashboard's page, and its Content-Security-Policy."""
    import_map = json.dumps({"imports": {name: f"./assets/{file}" for name, file in LIBRARIES.items()}})
    head = [
        # It comes before the styles, because a script waits for earlier styles.
        f"<script>{_ASK_EARLY}</script>",
        '<link rel="stylesheet" href="assets/dashboard.css">',
        '<link rel="icon" href="assets/icon.svg" type="image/svg+xml">',
        f'<script type="importmap">{import_map}</script>',
        # Without preloading, a browser requests a module only after reading the one that imports it.
        *(f'<link rel="modulepreload" href="assets/{file}">' for file in LIBRARIES.values()),
        '<script type="module" src="assets/dashboard.js"></script>',
    ]
    policy = [
        "default-src 'none'",
        f"script-src 'self' '{_source_hash(_ASK_EARLY)}' '{_source_hash(import_map)}'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return _DOCUMENT.format(head="\n".join(head), start="jobs", data=""), "; ".join(policy)


def report(answers: Mapping[str, object], start: str) -> str:
    """Return a document that needs no service and no network. It contains the API's `answers` by path, and
    begins at the page `start`."""
    head, policy = _report_head()
    # Data without "<" can't end its element.
    data = json.dumps(answers).replace("<", "\\u003c")
    return _DOCUMENT.format(
        head=f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n{head}',
        start=escape(start),
        data=f'<script type="application/json" id="answers">{data}</script>\n',
    )


@cache
def _report_head() -> tuple[str, str]:
    """Return the styles and scripts of a report, and its policy."""
    modules = {name: (STATIC / file).read_text() for name, file in LIBRARIES.items()}
    modules["tunefarm"] = _script()
    import_map = json.dumps({"imports": {name: _data_url(text) for name, text in modules.items()}})
    begin = 'import "tunefarm";'
    styles = _styles()
    head = [
        f"<style>{styles}</style>",
        f'<script type="importmap">{import_map}</script>',
        f'<script type="module">{begin}</script>',
    ]
    policy = [
        "default-src 'none'",
        f"script-src data: '{_source_hash(import_map)}' '{_source_hash(begin)}'",
        f"style-src '{_source_hash(styles)}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "\n".join(head), "; ".join(policy)


def _script() -> str:
    files = sorted(STATIC.rglob("*.js"))
    return joined({f"tunefarm/{file.relative_to(STATIC)}": file.read_text() for file in files}, LIBRARIES)


def _styles() -> str:
    return "\n".join((STATIC / style).read_text() for style in _STYLES)


def _data_url(module: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(module.encode()).decode()


def _source_hash(text: str) -> str:
    """Return the hash that lets a content security policy allow this inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
