"""Write files that appear at their place only when they are whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def new_file(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `path` once it is whole. A device or a pipe is written into.

    The file gets the permissions `mode` without the umask's. After an OSError, `path` is as it was.
    """
    path = path.resolve()  # the file that a link names
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    # No other process writes a file of this name, and it is as short as possible.
    partial = path.with_name(f".{secrets.token_hex(4)}.part")
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
