"""The name under which a scheduler claims jobs: unique on its host, and reused after a crash. The claims of a
killed scheduler stay valid for a minute. A successor with the same name continues at once. Schedulers that
run at the same time must not share a name.
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
    """Yield the first of HOST-1, HOST-2... that no other scheduler on this host holds for the named database.
    The name is held until the context or the process ends, even by a crash.
    """
    host = socket.gethostname()
    for number in itertools.count(1):
        name = f"{host}-{number}"
        digest = hashlib.sha256(f"{name}\n{database}".encode()).hexdigest()
        with socket.socket(socket.AF_UNIX) as lock:
            try:
                # The kernel frees an abstract socket address when the process ends.
                lock.bind(f"\0tunefarm-scheduler-{digest}".encode())
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            yield name
            return
