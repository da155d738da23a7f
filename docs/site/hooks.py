"""MkDocs' hooks: pages that lie elsewhere or are generated, and links for the repository and the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.site import figures, messages, reference

ROOT = Path(__file__).parents[2]
# Documents outside of docs/, by their pages.
_ELSEWHERE = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
_PAGES = {document: page for page, document in _ELSEWHERE.items()} | {
    "docs/decisions": "decisions/README.md",
    "docs/devices": "devices/worker.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for page, document in _ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / document).read_text()))
    generated = reference.pages() | figures.pages() | {"reference/messages.md": messages.page()}
    for page, text in generated.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to the site's pages; what the repository alone has is named, not linked."""
    uri = page.file.src_uri
    if uri.startswith("reference/"):
        return markdown
    document = _ELSEWHERE.get(uri, f"docs/{uri}")

    def of_site(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(document), path))
        found = _PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if found is None or files.get_file_from_path(found) is None:
            return text if "`" in text or text == path else f"{text} (`{path}`)"
        relative = posixpath.relpath(found, posixpath.dirname(uri) or ".")
        return f"{mark}[{text}]({relative}{'#' + anchor if anchor else ''})"

    if uri == "decisions/README.md":
        markdown += _list_of_decisions()
    # Code is left alone.
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else _LINK.sub(of_site, part) for part in parts)


def _list_of_decisions() -> str:
    """Return a line for each decision: its number and its title, linked to its page."""
    lines = []
    for page in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        number, title = page.read_text().splitlines()[0].removeprefix("# ").split(" ", 1)
        lines.append(f"- [{number}]({page.name}) {title}\n")
    return "\n" + "".join(lines)
