"""Where a rig may stand: as usual, on a disk that is nearly full, or with its workers behind a cable."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.faults.rig import Rig, running

DISK_BYTES = 48 << 20
NAMESPACE = f"tunefarm-{os.getpid()}"
# Interfaces have names of 15 characters at most.
CABLE = f"tf{os.getpid()}"
# Not those of another process, should that have been killed and left its network behind.
SUBNET = f"10.{211 + os.getpid() % 32}.{os.getpid() // 32 % 256}"
SERVER, WORKERS = f"{SUBNET}.1", f"{SUBNET}.2"


class Missing(Exception):
    """This machine doesn't allow it; the message says what it takes."""


@contextlib.contextmanager
def usual() -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="tunefarm-rig-") as folder, running(Rig(Path(folder))) as rig:
        yield rig


@contextlib.contextmanager
def small_disk() -> Iterator[Rig]:
    """The database is on a disk of its own of DISK_BYTES. Raises Missing."""
    with tempfile.TemporaryDirectory(prefix="tunefarm-rig-") as folder:
        disk = Path(folder) / "data"
        disk.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(disk))
        try:
            with running(Rig(Path(folder))) as rig:
                yield rig
        finally:
            _run("umount", "--lazy", str(disk))


@contextlib.contextmanager
def behind_a_cable() -> Iterator[Rig]:
    """Workers have a network of their own; a pair of interfaces leads to the server's. Raises Missing."""
    with tempfile.TemporaryDirectory(prefix="tunefarm-rig-") as folder, _network():
        inside = ("ip", "netns", "exec", NAMESPACE)
        with running(Rig(Path(folder), host=SERVER, inside=inside)) as rig:
            yield rig


PLACES: dict[str, Callable[[], AbstractContextManager[Rig]]] = {
    "usual": usual,
    "small disk": small_disk,
    "cable": behind_a_cable,
}


@contextlib.contextmanager
def unplugged() -> Iterator[None]:
    """Nothing passes."""
    _run("ip", "link", "set", CABLE, "down")
    try:
        yield
    finally:
        _run("ip", "link", "set", CABLE, "up")


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """What workers send arrives, what the server answers does not."""
    _run("ip", "route", "add", "blackhole", f"{WORKERS}/32")
    try:
        yield
    finally:
        _run("ip", "route", "del", "blackhole", f"{WORKERS}/32")


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Not a byte more can be written to the disk of this folder."""
    filler = folder / "filler"
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def _network() -> Iterator[None]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise Missing("network namespaces take root and ip(8)")
    inside = f"{CABLE}in"
    _run("ip", "netns", "add", NAMESPACE)
    try:
        _run("ip", "link", "add", CABLE, "type", "veth", "peer", "name", inside)
        _run("ip", "link", "set", inside, "netns", NAMESPACE)
        _run("ip", "addr", "add", f"{SERVER}/30", "dev", CABLE)
        _run("ip", "link", "set", CABLE, "up")
        _run("ip", "-n", NAMESPACE, "addr", "add", f"{WORKERS}/30", "dev", inside)
        for interface in (inside, "lo"):
            _run("ip", "-n", NAMESPACE, "link", "set", interface, "up")
        yield
    finally:
        # The interfaces go with it.
        subprocess.run(["ip", "netns", "del", NAMESPACE], capture_output=True, check=False)


def _run(*command: str) -> None:
    """Raises Missing."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", "") or str(error)
        raise Missing(f"{' '.join(command[:3])} is not possible here: {why.strip()}") from error
