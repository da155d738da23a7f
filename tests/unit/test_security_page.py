"""docs/security.md names the tests of its promises, and all of these tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SECURITY = TESTS.parent / "docs" / "security.md"
PLACES = (TESTS, TESTS / "integration")


def test_each_test_that_the_page_names_exists() -> None:
    text = SECURITY.read_text()
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)`", text)
    assert len(named) > 60
    missing = [name for name in named if not any((place / name).is_file() for place in PLACES)]
    assert missing == []
    assert (TESTS / "faults").is_dir()


@pytest.mark.parametrize("section", ["Threats", "Traces, workloads and libraries", "The service"])
def test_each_promise_names_its_test(section: str) -> None:
    """A promise is a list item, or a sentence that begins in bold."""
    promises = SECURITY.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    items = [item for item in re.split(r"\n(?=- |\*\*)|\n\n", promises) if re.match(r"- |\*\*", item)]
    assert items
    test = re.compile(r"test_\w+\.py|\]\(#|faults/|tests\.fuzz| may$")
    assert [item for item in items if not test.search(item.rstrip())] == []
