"""docs/security.md names the tests of its promises, and all of these tests exist."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_each_threat_names_its_test() -> None:
    """A threat is a list item, or a sentence that begins in bold, in the section Threats."""
    threats = SECURITY.read_text().partition("## Threats")[2].partition("\n## ")[0]
    items = [item for item in re.split(r"\n(?=- |\*\*)|\n\n", threats) if re.match(r"- |\*\*", item)]
    test = re.compile(r"test_\w+\.py|\]\(#|faults/|tests\.fuzz| may$")
    assert [item for item in items if not test.search(item.rstrip())] == []
