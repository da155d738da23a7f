"""The slow lane: which commands run it, and that its parts are complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lanes import PARTS, USUAL_S

ROOT = Path(__file__).parents[2]
COUNT = 4 * (PARTS - 1)
TESTS = f"""
import pytest

@pytest.mark.slow_lane
@pytest.mark.parametrize("number", range({COUNT}))
def test_rare(number): pass

@pytest.mark.slow
def test_slow(): pass

def test_quick(commit_seed): print("seed", commit_seed)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(TESTS)
    settings = "[pytest]\nmarkers =\n    slow\n    slow_lane\naddopts = --strict-markers\n"
    (tmp_path / "pytest.ini").write_text(settings)
    return tmp_path


def run(folder: Path, *flags: str) -> tuple[set[str], str]:
    """Return the names of the tests that ran, and the output."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.lanes", "-p", "no:cacheprovider", "-vs", *flags]
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"::(test_\S+)", done.stdout)), done.stdout


RARE = {f"test_rare[{number}]" for number in range(COUNT)}


def test_all_tests_run_by_default_and_the_longest_first(folder: Path) -> None:
    (folder / "test_long.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.slow_lane(seconds=20)\ndef test_long(): pass\n\n"
        "@pytest.mark.slow_lane(seconds=30)\ndef test_longest(): pass\n"
    )
    ran, output = run(folder)
    assert ran == RARE | {"test_slow", "test_quick", "test_long", "test_longest"}
    order = re.findall(r"::(test_\w+)", output)
    assert order[:2] == ["test_longest", "test_long"]
    assert order[-1] == "test_quick"


def test_none_leaves_only_the_slow_lane_out(folder: Path) -> None:
    assert run(folder, "--slow-lane=none")[0] == {"test_slow", "test_quick"}


def test_the_slow_lane_is_slow(folder: Path) -> None:
    assert run(folder, "-m", "not slow")[0] == {"test_quick"}


@pytest.mark.slow
def test_the_parts_of_as_many_commits_are_the_whole_lane(folder: Path) -> None:
    seen: list[str] = []
    for commit in range(10, 10 + PARTS):
        ran, output = run(folder, "--slow-lane=part", f"--commit={commit:x}")
        assert {"test_slow", "test_quick"} <= ran
        assert f"seed {commit}\n" in output
        assert COUNT // PARTS <= len(ran & RARE) <= COUNT // PARTS + 1
        seen += ran & RARE
    assert len(seen) == COUNT
    assert set(seen) == RARE


@pytest.mark.slow
def test_fewer_tests_run_beside_a_long_test(folder: Path) -> None:
    """A test that takes as long as a part does has a part of its own."""
    own = COUNT * USUAL_S / (PARTS - 1)
    mark = f"@pytest.mark.slow_lane(seconds={own})"
    (folder / "test_long.py").write_text(f"import pytest\n\n{mark}\ndef test_long(): pass\n")
    runs = [run(folder, "--slow-lane=part", f"--commit={part:x}")[0] for part in range(PARTS)]
    sizes = sorted(len(ran & RARE) for ran in runs)
    assert sizes == [0, *[COUNT // (PARTS - 1)] * (PARTS - 1)]
    assert [len(ran & RARE) for ran in runs if "test_long" in ran] == [0]
