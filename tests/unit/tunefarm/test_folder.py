"""A data folder belongs to one stack at a time."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from records.storage.database import Database
from tunefarm.embedded.folder import DataFolder, RunningStack
from tunefarm.errors import StackError

RUNNING = RunningStack("http://127.0.0.1:8760", "127.0.0.1:8761", pid=7, lasting=True)


def test_a_second_owner_gets_the_url_of_the_first(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    with folder.locked():
        folder.announce(RUNNING)
        assert folder.running() == RUNNING
        with pytest.raises(StackError, match=re.escape(RUNNING.url)), folder.locked():
            pytest.fail("two owners")
    assert folder.running() is None
    with folder.locked():
        assert folder.running() is None


def test_the_folder_stays_taken_while_a_child_holds_the_lock(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    with folder.locked() as lock:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,))
    with child:
        with pytest.raises(StackError, match="in use already"), folder.locked():
            pytest.fail("two owners")
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
    with folder.locked():
        pass


def test_the_file_that_a_killed_stack_left_is_ignored(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    with folder.locked():
        pass
    folder.announce(RUNNING)
    assert folder.running() is None


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match=r"data folder .*file.* can't be written .*--data DIR"):
        DataFolder(tmp_path / "file").prepare()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StackError, match="Permission denied"):
        DataFolder(tmp_path).prepare()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_new_data_folder_is_private(tmp_path: Path, umask: int) -> None:
    folder = DataFolder(tmp_path / "new" / "data")
    (tmp_path / "new").mkdir()
    before = os.umask(umask)
    try:
        folder.prepare()
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.path, folder.logs, folder.broker)] == [
        0o700
    ] * 3


def test_the_folder_of_an_older_version_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder = DataFolder(tmp_path)
    with folder.locked():
        pass
    folder.prepare()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_an_existing_foreign_folder_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    DataFolder(tmp_path).prepare()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_database_is_private_in_any_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder = DataFolder(tmp_path)
    folder.prepare()
    old = os.umask(0o022)
    try:
        database = Database(folder.database_url)
        database.migrate()
        files = [folder.database_file.with_name(f"tunefarm.db{suffix}") for suffix in ("", "-wal", "-shm")]
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 3
        for file in files:
            file.chmod(0o644)  # as older releases made them
        folder.prepare()
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 3
        database.close()
    finally:
        os.umask(old)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_low_limit_of_open_files_is_raised_or_named(tmp_path: Path) -> None:
    """In processes of their own, which can't take a lowered limit back."""
    program = f"""
import resource, sys
from pathlib import Path
from tunefarm.embedded.folder import OPEN_FILES, DataFolder
from tunefarm.errors import StackError
hard = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
try:
    with DataFolder(Path({str(tmp_path)!r})).locked():
        print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == OPEN_FILES)
except StackError as error:
    print(error)
"""
    answers = [
        subprocess.run(
            [sys.executable, "-c", program, hard], capture_output=True, text=True, check=True
        ).stdout
        for hard in ("1024", "64")
    ]
    assert answers[0] == "True\n"
    assert answers[1].startswith("a process may open only 64 files here, and the service needs 512: raise")
