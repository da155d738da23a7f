"""The name under which a scheduler claims jobs: unique on its host, and used again after a crash.

A killed scheduler leaves claims behind that hold for minutes. Its successor goes on at once if it has the
same name; two schedulers that run side by side must not share one.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unique_name(database: str) -> Iterator[str]:
    """Yield the first of HOST-1, HOST-2... that no other scheduler of this host holds for the named database.

    The name is held until the context ends or the process does, in whatever way.
    """
    host = socket.gethostname()
    for number in itertools.count(1):
        name = f"{host}-{number}"
        digest = hashlib.sha256(f"{name}\n{database}".encode()).hexdigest()
        with socket.socket(socket.AF_UNIX) as lock:
            try:
                # An abstract address belongs to the process: the kernel frees it with the process.
                lock.bind(f"\0tunefarm-scheduler-{digest}".encode())
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            yield name
            return
