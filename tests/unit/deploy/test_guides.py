"""The guides for devices name settings and files that exist; tests/integration/docs checks their commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from worker.settings import WorkerSettings

ROOT = Path(__file__).parents[3]
GUIDES = sorted((ROOT / "docs/devices").glob("*.md"))

guides = pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)


def commands(guide: Path) -> list[list[str]]:
    """The words after `tunefarm` of every command, in blocks and in lines."""
    blocks = re.findall(r"^```(?:sh.*)?\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`(tunefarm [^`\n]*)`", guide.read_text())
    found = (re.search(r"(?:^|^[\w./-]+/|; )tunefarm ([a-z-].+)", line) for line in lines)
    # What follows a bar is another command of its kind.
    texts = [match[1].partition(" | ")[0] for match in found if match is not None]
    return [shlex.split(text, comments=True) for text in texts]


def test_the_common_guide_says_what_to_run() -> None:
    assert len(commands(ROOT / "docs/devices/worker.md")) >= 4


@guides
def test_each_guide_links_to_the_common_guide(guide: Path) -> None:
    assert guide.stem == "worker" or "](worker.md)" in guide.read_text()


@guides
def test_every_setting_and_file_exists(guide: Path) -> None:
    text = guide.read_text()
    for name in re.findall(r"TUNEFARM_WORKER_([A-Z_]+)\b", text):
        assert name.lower() in WorkerSettings.model_fields, name
    for path in re.findall(r"\bdeploy/[\w./-]+|(?<=\]\()[\w./-]+\.md", text):
        assert (ROOT / path).exists() or (guide.parent / path).exists(), path


def test_each_kind_of_device_has_a_guide() -> None:
    assert {guide.stem for guide in GUIDES} == {"worker", "raspberry-pi", "jetson", "gpu-host", "x86-server"}
