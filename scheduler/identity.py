"""Which scheduler this is among those of its host.

Claims on jobs carry a scheduler's name. One that was killed left claims behind, which hold for minutes; its
successor goes on at once if it has the same name, while two that run side by side must not share one.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def identity(database: str) -> Iterator[str]:
    """The first of HOST-1, HOST-2... that no other scheduler of this host has on the database of this name.

    It is held until the context ends or the process does, however that ends.
    """
    host = socket.gethostname()
    for number in itertools.count(1):
        name = f"{host}-{number}"
        with socket.socket(socket.AF_UNIX) as lock:
            try:
                lock.bind(_address(database, name))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            yield name
            return


def _address(database: str, name: str) -> bytes:
    """An abstract address: it belongs to the process, and the kernel frees it with the process."""
    return b"\0tunefarm-scheduler-" + hashlib.sha256(f"{name}\n{database}".encode()).hexdigest().encode()
