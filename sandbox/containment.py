"""Contain a process before it runs untrusted code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from sandbox import landlock, limits, mounts, privileges, python_packages, reaper, syscall_filter
from sandbox.files import VisibleFiles
from sandbox.kinds import ChildKind
from sandbox.privileges import Account
from system.linux import die_with_parent

# The threads of a child for each core: the pools of TVM, BLAS and the builders, and threads of candidates.
THREADS_PER_CORE = 8
MORE_THREADS = 512
MAX_REPORT_BYTES = 65536


@dataclass(frozen=True)
class _Namespaces:
    """The namespaces that the kernel granted, and the reason if it refused some."""

    are_granted: bool = False
    has_processes: bool = False
    refused: str = ""


@dataclass(frozen=True)
class _Rehearsal:
    """The result of a rehearsal: the error of the step that failed, or the first path that can't be read."""

    mounts: str = ""
    user: str = ""
    unreadable: str = ""


def enter(
    kind: ChildKind,
    parent_pid: int,
    user: str,
    scratch: Path,
    readable: Sequence[Path] = (),
    writable: Sequence[Path] = (),
) -> list[str]:
    """Fork a contained child, and return in it. The calling process becomes the reaper. Return the sandbox's
    gaps.

    A gap is a sentence about a restriction that isn't possible on this machine. The child sees only the files
    of this Python and its compilers, `scratch`, and the paths in `readable` and `writable`. If the caller is
    root and it is possible, the child runs as `user`, who then owns the folder `scratch`. PyTorch isn't
    loaded unless the child lets it in (`sandbox.python_packages`).

    Exit with a message if the user doesn't exist, or if Python can't be read without root's rights.
    """
    python_packages.keep_out(python_packages.TORCH)
    if sys.platform != "linux":
        return [f"{kind.subject} isn't contained: only Linux can do that"]
    limits.limit_files()
    account = _account(user, kind) if os.geteuid() == 0 else None
    most_threads = _threads_of(os.geteuid() if account is None else account.uid)
    most_threads += MORE_THREADS + THREADS_PER_CORE * (os.cpu_count() or 1)
    files = VisibleFiles.of(kind, os.environ, readable, [scratch, *writable])
    gaps: list[str] = []
    namespaces = _unshare()
    if not namespaces.has_processes:
        gaps.append(
            f"{kind.subject} sees the other processes of its user, this system refuses namespaces "
            f"({namespaces.refused}): allow them, or run tunefarm as root"
        )
        privileges.become_subreaper()
    die_with_parent(reaper.END_SIGNAL, parent_pid)
    privileges.hide_memory()
    protected = () if namespaces.has_processes else (os.getpid(), parent_pid)
    reaper.fork_child(namespaces.has_processes)
    parent = os.getppid()
    refused_mounts = "" if namespaces.are_granted else namespaces.refused
    attempt = _rehearse(files, namespaces, not refused_mounts, account)
    if attempt.mounts:
        refused_mounts = attempt.mounts
        attempt = _rehearse(files, namespaces, False, account)
    if account is not None and (attempt.user or attempt.unreadable):
        gaps.append(_root_gap(kind, account, attempt))
        account = None
        attempt = _rehearse(files, namespaces, not refused_mounts, None)
    elif account is not None and account.uid == 0:
        gaps.append(f"{kind.subject} runs as root: choose another user with TUNEFARM_WORKER_CHILD_USER")
    if attempt.unreadable:
        sys.exit(
            f"{attempt.unreadable} can't be read without root's rights: let every user read Python and "
            "tunefarm's packages, for example with `chmod -R go+rX`"
        )
    if not refused_mounts:
        mounts.mount_only(files, namespaces.has_processes)
    _drop_rights(account, scratch)
    if refused_mounts:
        gaps += _restrict_by_landlock(kind, files, refused_mounts)
    try:
        syscall_filter.load(not refused_mounts, protected, has_driver=bool(kind.groups))
    except OSError as error:
        gaps.append(f"{kind.subject} can reach sockets, no filter is possible: {error}: install libseccomp2")
    die_with_parent(parent_pid=parent)  # again, because the kernel resets it when the user changes
    limits.limit_processes(most_threads)
    return gaps


def _account(user: str, kind: ChildKind) -> Account | None:
    """Return the account that the child of a root parent runs as."""
    try:
        return privileges.account_of(user, kind.groups)
    except KeyError:
        sys.exit(f"there is no user {user!r} here: set TUNEFARM_WORKER_CHILD_USER to one that exists")


def _threads_of(uid: int) -> int:
    """Return the number of a user's threads. The limit counts all of them, not only ours."""
    return sum(
        process.info["num_threads"] or 0
        for process in psutil.process_iter(["uids", "num_threads"])
        if process.info["uids"] and process.info["uids"].real == uid
    )


def _unshare() -> _Namespaces:
    """Enter as many namespaces as the kernel allows, for the processes that are forked from now on.

    Without a PID namespace, enter a user namespace, so that the child can't use another process's root folder
    or memory.
    """
    refused = ""
    for processes, own_user in ((True, False), (True, True), (False, True)):
        try:
            privileges.unshare_namespaces(processes, own_user)
        except OSError as error:
            refused = refused or error.strerror or str(error)
        else:
            return _Namespaces(True, processes, refused)
    return _Namespaces(refused=refused)


def _rehearse(
    files: VisibleFiles, namespaces: _Namespaces, with_mounts: bool, account: Account | None
) -> _Rehearsal:
    """Try irreversible steps in a separate process, and check that all needed files stay readable."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        found: dict[str, str] = {"mounts": "the rehearsal died"} if with_mounts else {"user": "it died"}
        try:
            found = _try_steps(files, namespaces, with_mounts, account)
        finally:
            os.write(writing, json.dumps(found).encode()[:MAX_REPORT_BYTES])
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as report:
        text = report.read()
    os.waitpid(child, 0)
    return _Rehearsal(**json.loads(text))


def _try_steps(
    files: VisibleFiles, namespaces: _Namespaces, with_mounts: bool, account: Account | None
) -> dict[str, str]:
    if with_mounts:
        try:
            mounts.mount_only(files, namespaces.has_processes)
        except OSError as error:
            return {"mounts": error.strerror or str(error)}
    try:
        _drop_rights(account, None)
    except OSError as error:
        return {"user": error.strerror or str(error)}
    unreadable = _first_unreadable(_needed(files))
    return {} if unreadable is None else {"unreadable": str(unreadable)}


def _needed(files: VisibleFiles) -> Iterator[Path]:
    """Yield the paths that must be readable: Python, and each package and module that it may import."""
    shown = set(files.readable)
    yield from (Path(sys.executable), Path(os.__file__))
    for folder in files.listed:
        is_shown = not shown.isdisjoint((folder, *folder.parents))
        yield folder
        try:
            names = [name for name in os.listdir(folder) if name[:1] not in "._"]
        except OSError:
            continue
        yield from (folder / name for name in names if is_shown or folder / name in shown)


def _first_unreadable(paths: Iterable[Path]) -> Path | None:
    """Return the first path that this process may not read, or the first closed folder above it."""
    for path in paths:
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return next((one for one in reversed(path.parents) if not os.access(one, os.X_OK)), path)
        if not os.access(path, os.R_OK) or (path.is_dir() and not os.access(path, os.X_OK)):
            return path
    return None


def _drop_rights(account: Account | None, scratch: Path | None) -> None:
    if account is not None:
        if scratch is not None:
            _give(scratch, account)
        privileges.switch_user(account)
    privileges.drop_capabilities()
    privileges.forbid_new_privileges()


def _give(folder: Path, account: Account) -> None:
    """Make an account the owner of a folder and its contents."""
    for path, folders, names in os.walk(folder):
        for name in ("", *folders, *names):
            os.chown(os.path.join(path, name), account.uid, account.gid, follow_symlinks=False)


def _root_gap(kind: ChildKind, account: Account, attempt: _Rehearsal) -> str:
    if attempt.user:
        reason = f"this system refuses to make it {account.name}'s ({attempt.user})"
    else:
        reason = f"the user {account.name} may not read {attempt.unreadable}; let every user read it"
    return f"{kind.subject} runs as root: {reason}"


def _restrict_by_landlock(kind: ChildKind, files: VisibleFiles, refused: str) -> list[str]:
    try:
        landlock.restrict(files)
    except OSError as error:
        return [
            f"{kind.subject} sees the files of its user, this system refuses mounts ({refused}) and Landlock "
            f"({error.strerror}): allow namespaces, or boot a kernel of version 5.13 or later with Landlock"
        ]
    return []
