"""Environments of a rig: the plain machine, a separate small disk, or a cable that can be unplugged."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme

from tests import services
from tests.faults.links import Links
from tests.faults.process import CHILDREN_VARIABLE
from tests.faults.replicas import ReplicatedRig
from tests.faults.rig import Program, Rig, running

DISK_BYTES = 48 << 20
TEN_YEARS_S = 3650 * 86400.0
NAMESPACE = f"tunefarm-{os.getpid()}"
# Interfaces have names of 15 characters at most.
CABLE = f"tf{os.getpid()}"
# A subnet for this process only, because a killed process may have left its network behind.
SUBNET = f"10.{211 + os.getpid() % 32}.{os.getpid() // 32 % 256}"
SERVER, WORKERS = f"{SUBNET}.1", f"{SUBNET}.2"


class Unsupported(Exception):
    """This machine lacks something that an environment needs. The message says what."""


@contextlib.contextmanager
def local() -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="tunefarm-rig-") as folder, running(Rig(Path(folder))) as rig:
        yield rig


@contextlib.contextmanager
def small_disk() -> Iterator[Rig]:
    """Yield a rig whose database is on a separate disk of DISK_BYTES. Raises Unsupported."""
    with (
        tempfile.TemporaryDirectory(prefix="tunefarm-rig-") as folder,
        small_tmpfs(Path(folder) / "data", DISK_BYTES),
        running(Rig(Path(folder))) as rig,
    ):
        yield rig


@contextlib.contextmanager
def small_tmpfs(folder: Path, num_bytes: int) -> Iterator[None]:
    """Make the folder, with a disk of its own. Raises Unsupported."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={num_bytes},mode=755", "none", str(folder))
    try:
        yield
    finally:
        _run("umount", "--lazy", str(folder))


@contextlib.contextmanager
def behind_a_cable() -> Iterator[Rig]:
    """Yield a rig whose workers run in a network namespace; a veth pair leads to the server. Raises
    Unsupported."""
    with tempfile.TemporaryDirectory(prefix="tunefarm-rig-") as folder, _network():
        inside = ("ip", "netns", "exec", NAMESPACE)
        with running(Rig(Path(folder), host=SERVER, worker_prefix=inside)) as rig:
            yield rig


@contextlib.contextmanager
def replicated() -> Iterator[Rig]:
    """Yield a ReplicatedRig, which reaches PostgreSQL by TLS. Raises Unsupported."""
    with contextlib.ExitStack() as stack:
        try:
            postgresql = stack.enter_context(services.postgresql(tls=True))
            redis = stack.enter_context(services.redis_server())
        except services.Missing as missing:
            raise Unsupported(str(missing)) from missing
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tunefarm-rig-")))
        links = stack.enter_context(contextlib.closing(Links()))
        rig = ReplicatedRig(folder, replicas=2, postgresql=postgresql, redis=redis, links=links)
        yield stack.enter_context(running(rig))


@contextlib.contextmanager
def contained() -> Iterator[Rig]:
    """Yield a rig whose scheduler imports and compiles models in child processes, as a service does."""
    with (
        tempfile.TemporaryDirectory(prefix="tunefarm-rig-") as folder,
        running(Rig(Path(folder), settings={CHILDREN_VARIABLE: "1"})) as rig,
    ):
        yield rig


@contextlib.contextmanager
def encrypted() -> Iterator[Rig]:
    """Yield a rig whose clients and workers use TLS."""
    with (
        _certified() as (folder, settings),
        running(Rig(folder, settings=settings, authority=folder / "ca.pem")) as rig,
    ):
        yield rig


@contextlib.contextmanager
def encrypted_behind() -> Iterator[Rig]:
    """Yield a rig with TLS, and with devices that have booted with a clock TEN_YEARS_S behind. Raises
    Unsupported."""
    wrong: dict[str, Any] = {"library": _faketime(), "kinds": ("worker",), "ahead_s": -TEN_YEARS_S}
    with (
        _certified() as (folder, settings),
        running(WrongClockRig(folder, settings=settings, authority=folder / "ca.pem", **wrong)) as rig,
    ):
        yield rig


@contextlib.contextmanager
def _certified() -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a folder with the certificate of a server, and the settings that use it."""
    with tempfile.TemporaryDirectory(prefix="tunefarm-rig-") as name:
        folder = Path(name)
        authority = trustme.CA()
        made = authority.issue_cert("127.0.0.1", not_before=datetime.now(UTC) - timedelta(days=1))
        authority.cert_pem.write_to_path(folder / "ca.pem")
        made.cert_chain_pems[0].write_to_path(folder / "server.pem")
        made.private_key_pem.write_to_path(folder / "server.key")
        settings = {
            "TUNEFARM_TLS_CERT": str(folder / "server.pem"),
            "TUNEFARM_TLS_KEY": str(folder / "server.key"),
            "TUNEFARM_WORKER_CA": str(folder / "ca.pem"),
        }
        yield folder, settings


@dataclass(kw_only=True)
class WrongClockRig(Rig):
    """A rig whose programs see a wrong time: libfaketime answers them. Timers aren't affected.

    `kinds` are the kinds of these programs, and `ahead_s` the seconds at the beginning.
    """

    library: Path
    kinds: tuple[str, ...]
    ahead_s: float

    def __post_init__(self) -> None:
        self._offset = self.folder / "offset"
        self._offset.write_text(f"{self.ahead_s:+.0f}")
        super().__post_init__()

    def step_clock(self, seconds: float) -> None:
        fresh = self._offset.with_suffix(".new")
        fresh.write_text(f"{float(self._offset.read_text()) + seconds:+.0f}")
        fresh.replace(self._offset)

    def program(self, kind: str, *flags: str, name: str = "", **more: str) -> Program:
        faked = {
            "LD_PRELOAD": str(self.library),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return super().program(kind, *flags, name=name, **more, **(faked if kind in self.kinds else {}))


def _faketime() -> Path:
    """Return the library that sets a program's clock. Raises Unsupported."""
    libraries = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")]
    if not libraries:
        raise Unsupported("no clock can be set: install faketime")
    return libraries[0]


@contextlib.contextmanager
def wrong_clock() -> Iterator[Rig]:
    """Yield a rig on a machine that has booted with a clock TEN_YEARS_S ahead."""
    with tempfile.TemporaryDirectory(prefix="tunefarm-rig-") as folder:
        rig = Rig(Path(folder), settings={"TUNEFARM_WEBHOOK_ALLOW": "127.0.0.1"})
        rig.step_clock(TEN_YEARS_S)
        with running(rig):
            yield rig


ENVIRONMENTS: dict[str, Callable[[], AbstractContextManager[Rig]]] = {
    "local": local,
    "small disk": small_disk,
    "cable": behind_a_cable,
    "replicated": replicated,
    "contained": contained,
    "encrypted": encrypted,
    "wrong clock": wrong_clock,
    "encrypted, devices behind": encrypted_behind,
}


@contextlib.contextmanager
def unplugged() -> Iterator[None]:
    """Take the link down: no packet passes in either direction."""
    _run("ip", "link", "set", CABLE, "down")
    try:
        yield
    finally:
        _run("ip", "link", "set", CABLE, "up")


@contextlib.contextmanager
def half_open() -> Iterator[None]:
    """Drop the server's answers. Messages of workers still arrive."""
    _run("ip", "route", "add", "blackhole", f"{WORKERS}/32")
    try:
        yield
    finally:
        _run("ip", "route", "del", "blackhole", f"{WORKERS}/32")


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill the disk of `folder` to its last byte."""
    filler = folder / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def _network() -> Iterator[None]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise Unsupported("network namespaces take root and ip(8)")
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
        # Deleting the namespace deletes the interfaces.
        subprocess.run(["ip", "netns", "del", NAMESPACE], capture_output=True, check=False)


def _run(*command: str) -> None:
    """Raises Unsupported."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", "") or str(error)
        raise Unsupported(f"{' '.join(command[:3])} is not possible here: {why.strip()}") from error
