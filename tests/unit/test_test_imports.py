"""No test imports another test. Shared code is in separate modules."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def imported_tests(source: str) -> list[str]:
    """Return the test modules that a source imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module or ''}.{alias.name}" for alias in node.names]
    return [
        name
        for name in names
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))
    ]


def test_no_test_is_imported() -> None:
    found = {
        str(path.relative_to(TESTS)): names
        for path in TESTS.rglob("*.py")
        if (names := imported_tests(path.read_text()))
    }
    assert found == {}, "move what is shared to a module without tests"


def test_an_imported_test_is_found() -> None:
    assert imported_tests("from tests.unit.core.test_job import GOAL") == ["tests.unit.core.test_job.GOAL"]
    assert imported_tests("from tests.unit.core import test_job") == ["tests.unit.core.test_job"]
    assert imported_tests("import tests.unit.core.test_job") == ["tests.unit.core.test_job"]
    assert imported_tests("from tests.devices import DEVICE\nimport pytest") == []
