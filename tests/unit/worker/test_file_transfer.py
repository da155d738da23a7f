from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.privileges import account_of
from worker.runner.file_transfer import FileTransfer


def test_a_file_for_a_child_is_a_copy_and_can_be_read_back(tmp_path: Path) -> None:
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
def test_another_user_may_read_the_file_but_not_write_to_the_folder(tmp_path: Path) -> None:
    file = tmp_path / "library"
    file.write_bytes(b"code")
    transfer = FileTransfer("nobody")
    given = transfer.add(file)
    folder, nobody = given.parent.stat(), account_of("nobody")
    assert (folder.st_uid, folder.st_gid, folder.st_mode & 0o777) == (0, nobody.gid, 0o750)
    assert given.stat().st_mode & 0o777 == 0o644
    transfer.close()


def test_an_unknown_user_is_reported_by_the_child() -> None:
    transfer = FileTransfer("no such user")
    assert transfer.folder.stat().st_mode & 0o777 == 0o700, "nobody else may read it"
    transfer.close()
    assert not transfer.folder.exists()
