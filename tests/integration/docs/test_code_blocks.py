"""Every Python block of the documents passes mypy."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import mypy.api
import pytest

from tests.document_commands import DOCUMENTS, ROOT

BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
# What a block may use without importing it, because an earlier block or the text has it.
IMPORTED = {
    "Path": "from pathlib import Path",
    "jax": "import jax",
    "load": "from tunefarm_runtime import load",
    "te": "from tvm import te",
    "topi": "from tvm import topi",
    "torch": "import torch",
    "tunefarm": "import tunefarm",
    "tunefarm_runtime": "import tunefarm_runtime",
}
# The reader's own values.
PLACEHOLDERS = {
    *("KEY", "ids", "image", "inputs", "mask", "model", "model_sha256", "module", "params", "target"),
    *("token", "types", "workloads"),
}


def blocks() -> Iterator[tuple[str, str]]:
    """Yield the name of each document, and its blocks without their indentation."""
    for document in (*DOCUMENTS, ROOT / "runtime/README.md"):
        for indent, text in BLOCK.findall(document.read_text()):
            yield document.stem, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)


def module(text: str) -> str:
    """Return a block with its placeholders declared and its imports added."""
    free: set[str] = set()
    bound = set(dir(builtins))
    for statement in ast.parse(text).body:
        used: set[str] = set()
        given: set[str] = set()
        inner: set[str] = set()
        for node in ast.walk(statement):
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    used.add(name)
                case ast.Name(id=name) | ast.FunctionDef(name=name):
                    given.add(name)
                case ast.alias(name=name, asname=other):
                    given.add(other or name.partition(".")[0])
                case ast.arg(arg=name) | ast.comprehension(target=ast.Name(id=name)):
                    inner.add(name)
        # `model = compiled(model)` uses another `model` than it gives.
        free |= used - bound - inner - (set() if isinstance(statement, ast.Assign) else given)
        bound |= given
    unknown = free - IMPORTED.keys() - PLACEHOLDERS
    assert not unknown, f"{text}: nothing defines {unknown}"
    lines = [IMPORTED.get(name, f"{name}: Any") for name in sorted(free)]
    return "\n".join(["from typing import Any", *lines, text])


@pytest.mark.slow_lane(seconds=20)
def test_every_python_block_passes_mypy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for number, (name, text) in enumerate(blocks()):
        files.append(tmp_path / f"{re.sub(r'[^a-z]', '_', name.lower())}_{number}.py")
        files[-1].write_text(module(text))
    assert files
    monkeypatch.chdir(ROOT)
    told, errors, status = mypy.api.run(
        ["--allow-untyped-defs", "--allow-untyped-calls", "--allow-subclassing-any", *map(str, files)]
    )
    assert status == 0, told + errors


def test_a_block_that_names_something_unknown_is_found() -> None:
    with pytest.raises(AssertionError, match=re.escape("nothing defines {'clientt'}")):
        module("clientt.upload(model)")
