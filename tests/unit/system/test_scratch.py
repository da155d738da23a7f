"""Folders for temporary files, of processes that end and of those that are killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from system.scratch import scratch_folder

_MAKES_A_FILE = """
import sys, tempfile
from system.scratch import scratch_folder
with scratch_folder("test"):
    print(tempfile.mkdtemp(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def started(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """Return a process that has a temporary folder, and that folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MAKES_A_FILE],
        env={"TMPDIR": str(parent), "PYTHONPATH": str(Path(__file__).parents[3])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_temporary_files_are_deleted_with_the_folder(parent: Path) -> None:
    with scratch_folder("test") as folder:
        assert Path(tempfile.mkdtemp()).parent == folder
        assert folder.parent == parent
    assert tempfile.gettempdir() == str(parent)
    assert list(parent.iterdir()) == []


def test_only_folders_of_dead_processes_are_deleted(parent: Path) -> None:
    (killed, left), (alive, used) = started(parent), started(parent)
    with killed, alive:
        killed.kill()
        killed.wait()
        assert left.exists()
        with scratch_folder("test"):
            assert not left.parent.exists()
            assert used.exists()
        with scratch_folder("other"):
            assert used.exists()
        alive.communicate("")
    assert list(parent.iterdir()) == []


def test_links_are_not_followed(parent: Path) -> None:
    target = parent / "precious"
    target.mkdir()
    (target / "file").touch()
    (parent / "tunefarm-test-link").symlink_to(target)
    with scratch_folder("test"):
        assert (target / "file").exists()
