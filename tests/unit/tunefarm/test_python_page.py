"""The examples of docs/python.md import what the client exports."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import tunefarm.client

PAGE = Path(__file__).parents[3] / "docs/python.md"


def test_each_example_needs_one_import() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    examples = [block for block in blocks if "tunefarm.client" in block]
    assert examples
    for example in examples:
        imports = [
            node
            for node in ast.walk(ast.parse(example))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tunefarm")
        ]
        (only,) = imports
        assert only.module == "tunefarm.client"
        assert {alias.name for alias in only.names} <= set(tunefarm.client.__all__)
