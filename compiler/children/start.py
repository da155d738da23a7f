"""Start a module in a sandbox: without network, other processes, and files but those that the compiler needs.

    python -P -m compiler.children.start MODULE PARENT_PID GAPS_FD SCRATCH [WRITABLE ...]

This comes before the module is loaded: a process with threads, which libraries start, can't enter namespaces.
What the sandbox lacks on this machine goes to the descriptor GAPS_FD, a line for each gap.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import NoReturn

from sandbox import isolation
from system.linux import die_with_parent

# What a process that can't end by a signal adds to its number, as shells do.
_BY_SIGNAL = 128


def _enter(writable: list[Path]) -> list[str]:
    """Restrict this process, or continue in one that is restricted. Return the gaps."""
    if sys.platform != "linux":
        return ["the compiler isn't contained: only Linux can do that"]
    isolation.limit_files()
    has_processes = _unshare(processes=True)
    has_namespaces = has_processes or _unshare(processes=False)
    if has_processes:
        _continue_in_namespace()

    def drop_rights() -> None:
        isolation.drop_capabilities()
        isolation.forbid_new_privileges()

    return isolation.restrict_files("the compiler", [], writable, drop_rights, has_namespaces, has_processes)


def _unshare(processes: bool) -> bool:
    """Enter namespaces; return whether the kernel allows it."""
    try:
        isolation.unshare_namespaces(processes, user=True)
    except OSError:
        return False
    return True


def _continue_in_namespace() -> None:
    """Return in a process of the new PID namespace. This one waits for it, and ends as it does.

    Process 1 is another one between the two: signals that process 1 sends to itself, as in abort(), are
    ignored.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # as the child does, which is waited for
    for is_process_1 in (False, True):
        parent = os.getpid()
        child = os.fork()
        if child:
            _end_as(child, is_process_1)
        die_with_parent(parent_pid=parent)


def _end_as(child: int, is_process_1: bool) -> NoReturn:
    """Wait for the child, and end with its exit status or signal. Process 1 adopts what others leave."""
    ended, status = os.wait()
    while ended != child:
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    if is_process_1:
        os._exit(code if code >= 0 else _BY_SIGNAL - code)
    if code > _BY_SIGNAL:
        # Python's own handlers end with this process; SIGKILL has none.
        if code - _BY_SIGNAL != signal.SIGKILL:
            signal.signal(code - _BY_SIGNAL, signal.SIG_DFL)
        os.kill(os.getpid(), code - _BY_SIGNAL)
    os._exit(code if code >= 0 else 1)


def _main(module: str, parent: str, gaps: str, *writable: str) -> None:
    die_with_parent(parent_pid=int(parent))
    began_as = os.getpid()
    found = _enter(list(map(Path, writable)))
    watched = int(parent) if os.getpid() == began_as else os.getppid()
    die_with_parent(parent_pid=watched)  # again: the kernel may have forgotten it
    with os.fdopen(int(gaps), "w") as stream:
        stream.write("\n".join(found))
    os.chdir(writable[0])
    sys.argv = [module, str(watched)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
