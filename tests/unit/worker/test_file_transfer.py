from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.privileges import account_of
from worker.runner.file_transfer import FileTransfer


def test_what_is_given_is_a_copy_and_can_be_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "library"
    file.write_bytes(b"code")
    transfer = FileTransfer("nobody")
    first, second = transfer.add(file), transfer.add(file)
    assert first != second
    assert (first.read_bytes(), second.read_bytes()) == (b"code", b"code")
    transfer.clear()
    assert not first.exists()
    transfer.close()
    assert not first.parent.exists()
    assert file.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's child is another user's")
def test_another_user_may_read_it_but_leave_nothing_there(tmp_path: Path) -> None:
    file = tmp_path / "library"
    file.write_bytes(b"code")
    transfer = FileTransfer("nobody")
    given = transfer.add(file)
    folder, nobody = given.parent.stat(), account_of("nobody")
    assert (folder.st_uid, folder.st_gid, folder.st_mode & 0o777) == (0, nobody.gid, 0o750)
    assert given.stat().st_mode & 0o777 == 0o644
    transfer.close()


def test_a_user_that_does_not_exist_is_left_to_the_child_to_name() -> None:
    transfer = FileTransfer("no such user")
    assert transfer.folder.stat().st_mode & 0o777 == 0o700, "nobody else may read it"
    transfer.close()
    assert not transfer.folder.exists()
