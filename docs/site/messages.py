"""The page of all messages: every sentence in the code that isn't documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]
# Where messages come from, as a reader would look for them.
_ROOMS = {
    "The command and the embedded service": ("tunefarm",),
    "The service: HTTP, gRPC, the dashboard": ("server", "proto"),
    "Schedulers": ("scheduler",),
    "Workers": ("worker", "sandbox"),
    "Models: import, quantization, verification, compilation": ("compiler", "search"),
    "The database and the blob store": ("records",),
    "All processes: settings, TLS, files": ("system", "core"),
    "tunefarm-runtime": ("runtime/tunefarm_runtime",),
}
# Arguments whose texts are documentation.
_DOCUMENTATION = {"description", "epilog", "help", "summary"}
# The fewest words of a message. Shorter texts are names.
_FEWEST_WORDS = 3
_SHELL = re.compile(r'\bfail "((?:[^"\\]|\\.)*)"')
_SHELL_VALUE = re.compile(r"\$\{?\w+\}?|@\w+@")
# A value that the running product fills in.
_VALUE = "…"
# Texts of other languages: SQL, HTML, C, types in quotes.
_CODE = re.compile(
    r"^(?:SELECT|INSERT|UPDATE|CREATE|DELETE|WITH|PRAGMA|DROP|ALTER|LOCK|SET) |[<>;]\S*$|[{}]|^#|\w\[\w"
)
_PLACEHOLDER = re.compile(r"%\(?\w*\)?[-.\d]*[sdrfgx]|\{[^{}]*\}")


def page() -> str:
    """Return the page: every message, by the part of the product that says it."""
    lines = [
        "# Messages",
        "",
        "Every message that tunefarm prints, logs or answers, with … for values. Search the",
    ]
    lines += [
        "page for a few words of yours. [Troubleshooting](../troubleshooting.md) explains the frequent ones.",
        "",
    ]
    for title, texts in messages().items():
        lines += [f"## {title}", "", *(f"- `` {text} ``" for text in texts), ""]
    return "\n".join(lines)


@cache
def messages() -> dict[str, list[str]]:
    """Return the messages of each room, in alphabetical order."""
    found = {}
    for title, folders in _ROOMS.items():
        files = [
            file for folder in folders for end in ("py", "sh") for file in (_ROOT / folder).rglob(f"*.{end}")
        ]
        found[title] = sorted({text for file in files for text in _of_file(file)}, key=str.lower)
    return found


def _of_file(file: Path) -> Iterator[str]:
    """Yield the sentences of a file that aren't its documentation."""
    if file.suffix == ".sh":
        found = [_SHELL_VALUE.sub(_VALUE, text) for text in _SHELL.findall(file.read_text())]
    else:
        found = list(_texts(ast.parse(file.read_text())))
    for text in found:
        text = re.sub(rf"{_VALUE}(?:\s*{_VALUE})+", _VALUE, text.strip()).replace("`", "'")
        words = [word for word in text.split() if re.match(r"[('\"-]*[A-Za-z]", word)]
        if len(words) >= _FEWEST_WORDS and "\n" not in text and not _CODE.search(text):
            yield text


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts in a part of a program, with values replaced."""
    match node:
        case ast.Constant(value=str() as text):
            yield _PLACEHOLDER.sub(_VALUE, text)
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else _VALUE for part in parts)
            for part in parts:
                if isinstance(part, ast.FormattedValue):
                    yield from _texts(part.value)
        case ast.Expr(value=ast.Constant()):
            return  # a docstring
        case ast.keyword(arg=str() as name) if name in _DOCUMENTATION:
            return
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _texts(child)
