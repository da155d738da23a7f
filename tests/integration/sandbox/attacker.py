"""The attacks of a compromised child. Run this only in a child. `try_all` returns the result of each attack;
"" if the sandbox prevents it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

SECRET = "the password"
HARMLESS_NODES = {"null", "zero", "full", "random", "urandom"}
KERNEL_SETTINGS = ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger")
_KEYCTL = {"x86_64": 250, "aarch64": 219}


def try_all(told: Mapping[str, str]) -> dict[str, str]:
    """Try each attack. `told` has the paths and numbers that an attacker may know."""
    found = {}
    for name, attack in ATTACKS.items():
        try:
            found[name] = attack(told)
        except (OSError, ValueError, subprocess.SubprocessError):
            found[name] = ""
    return found


def _read(path: str) -> str:
    return path if SECRET in Path(path).read_text() else ""


def _write(path: str) -> str:
    with open(path, "r+b", buffering=0):
        return path


def _each(attack: Callable[[str], str], paths: list[str]) -> str:
    reached = []
    for path in paths:
        try:
            reached.append(attack(path))
        except OSError:
            continue
    return " ".join(filter(None, reached))


def read_secrets(told: Mapping[str, str]) -> str:
    return _each(_read, told["secrets"].split())


def read_another_root(told: Mapping[str, str]) -> str:
    processes = [name for name in os.listdir("/proc") if name.isdigit()]
    return _each(_read, [f"/proc/{pid}/root{path}" for pid in processes for path in told["secrets"].split()])


def write_packages(told: Mapping[str, str]) -> str:
    return _each(lambda folder: str(Path(folder, "planted").write_text("x")), told["packages"].split())


def set_the_kernel(told: Mapping[str, str]) -> str:
    return _each(_write, list(KERNEL_SETTINGS))


def write_sys(told: Mapping[str, str]) -> str:
    return _each(_write, ["/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/ksm/run"])


def open_devices(told: Mapping[str, str]) -> str:
    """Open every node of /dev that isn't harmless, and make a node."""
    nodes = [str(path) for path in Path("/dev").rglob("*") if not path.is_dir() and not path.is_symlink()]
    nodes += ["/dev/tty", "/dev/ptmx", "/dev/kmsg", "/dev/loop0", "/dev/kvm", "/dev/vsock", "/dev/ttyS0"]
    nodes += [told["terminal"]]
    reached = _each(_write, [node for node in nodes if Path(node).name not in HARMLESS_NODES])
    try:
        os.mknod("node", stat.S_IFBLK | 0o600, os.makedev(7, 0))
    except OSError:
        return reached
    return f"{reached} made a node"


def open_sockets(told: Mapping[str, str]) -> str:
    reached = []
    for family in range(64):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                opened = socket.socket(family, kind)
            except OSError:
                continue
            opened.close()
            reached.append(str(family))
    return " ".join(sorted({family for family in reached if int(family) != socket.AF_UNIX}))


def connect_to_a_service(told: Mapping[str, str]) -> str:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.connect(told["service"])
    return told["service"]


def read_keyrings(told: Mapping[str, str]) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    session_keyring, describe = -3, 6
    if libc.syscall(_KEYCTL[os.uname().machine], describe, session_keyring, None, 0) >= 0:
        return "the session's keyring"
    return ""


def take_uncounted_memory(told: Mapping[str, str]) -> str:
    """Take memory that no process has to map: a file in memory, and a segment of System V."""
    if told["kind"] == "measuring child of a GPU":
        return ""  # the driver may need them
    libc = ctypes.CDLL(None, use_errno=True)
    private, creating = 0, 0o1600
    taken = []
    with contextlib.suppress(OSError):
        os.close(os.memfd_create("taken"))
        taken.append("a file in memory")
    if libc.shmget(private, mmap.PAGESIZE, creating) >= 0:
        taken.append("a segment of System V")
    return " ".join(taken)


def signal_parents(told: Mapping[str, str]) -> str:
    def send(pid: str) -> str:
        os.kill(int(pid), signal.SIGCONT)
        return pid

    # Process 1 of a namespace is the sandbox's own.
    mine = os.getppid()
    return _each(send, [told["parent"], *([] if mine == 1 else [str(mine), str(-mine), "-1"])])


def gain_rights(told: Mapping[str, str]) -> str:
    facts = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
    )
    gained = [name for name in ("CapEff", "CapPrm", "CapInh", "CapAmb") if int(facts[name], 16)]
    return " ".join([*gained, *([] if facts["NoNewPrivs"] == "1" else ["set-user-ID programs"])])


def load_torch(told: Mapping[str, str]) -> str:
    """Import PyTorch, which must fail until the child allows it."""
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return ""
    return str(torch)


ATTACKS: dict[str, Callable[[Mapping[str, str]], str]] = {
    attack.__name__: attack
    for attack in (
        *(read_secrets, read_another_root, write_packages, set_the_kernel, write_sys, open_devices),
        *(open_sockets, connect_to_a_service, read_keyrings, signal_parents, gain_rights, load_torch),
        take_uncounted_memory,
    )
}


def leave_a_process(marker: str) -> None:
    """Start a process that leaves its session and its parent, with the marker in its command line."""
    program = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "open(sys.argv[1], 'w').close()\n"
        "time.sleep(3600)\n"
    )
    left = Path(tempfile.gettempdir(), marker)
    subprocess.Popen([sys.executable, "-c", program, str(left)], stdout=subprocess.DEVNULL)
    while not left.exists():
        time.sleep(0.01)


def report(told: Mapping[str, str]) -> dict[str, object]:
    """Return the user, what the attacks have reached, and whether the child can work; leave a process."""
    found = {"uid": os.getuid(), "works": works(told), "reached": try_all(told)}
    leave_a_process(told["marker"])
    return found


def works(told: Mapping[str, str]) -> str:
    """Do what a child must be able to do. Return "ok"."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
    for name in sorted(HARMLESS_NODES):
        os.close(os.open(f"/dev/{name}", os.O_RDWR))
    first, second = socket.socketpair()
    first.close()
    second.close()
    subprocess.run([sys.executable, "-c", "import numpy, core.trace"], check=True)
    return "ok"
