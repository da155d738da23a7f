"""Schedulers on one host have different names, and a killed scheduler's successor gets its name."""

from __future__ import annotations

import socket
import subprocess
import sys

from scheduler.identity import unique_name

HOST = socket.gethostname()
HOLD = """
import sys
from scheduler.identity import unique_name
with unique_name(sys.argv[1]) as name:
    print(name, flush=True)
    sys.stdin.read()
"""


def start(database: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, database], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_concurrent_schedulers_have_different_names() -> None:
    with unique_name("db") as first, unique_name("db") as second, unique_name("db") as third:
        assert [first, second, third] == [f"{HOST}-1", f"{HOST}-2", f"{HOST}-3"]


def test_a_name_is_free_again_at_the_end() -> None:
    for _ in range(2):
        with unique_name("db") as name:
            assert name == f"{HOST}-1"


def test_another_database_has_other_schedulers() -> None:
    with unique_name("db"), unique_name("other") as name:
        assert name == f"{HOST}-1"


def test_a_killed_schedulers_name_is_reused_by_the_next() -> None:
    victim, name = start("killed")
    other, other_name = start("killed")
    victim.kill()
    victim.communicate()
    successor, again = start("killed")
    for process in (other, successor):
        process.communicate()
    assert (name, other_name, again) == (f"{HOST}-1", f"{HOST}-2", f"{HOST}-1")
