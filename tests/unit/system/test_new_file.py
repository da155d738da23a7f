"""A file is replaced when its new content is whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from system.new_file import new_file


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "out.npz"
    file.write_bytes(b"old")

    def write_half() -> None:
        with new_file(file) as written:
            written.write(b"half")
            assert file.read_bytes() == b"old"
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        write_half()
    assert [one.name for one in tmp_path.iterdir()] == ["out.npz"]
    link = tmp_path / "link"
    link.symlink_to(file)
    with new_file(link, 0o600) as written:
        written.write(b"new")
    assert (file.read_bytes(), file.stat().st_mode & 0o777, link.is_symlink()) == (b"new", 0o600, True)


def test_two_writers_at_once_each_write_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / ("n" * 250)
    with new_file(file) as first, new_file(file) as second:
        for _ in range(3):
            first.write(b"1" * 10_000)
            second.write(b"2" * 10_000)
    assert file.read_bytes() == b"1" * 30_000


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with new_file(pipe) as written:
        written.write(b"content")
    reader.join()
    assert read == [b"content"]
