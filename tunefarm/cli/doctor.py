"""`tunefarm doctor`: checks this machine and the service, and says how to fix each problem."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from core.exit_code import ExitCode
from core.measurement import noise
from system.command import CommandError
from system.errors import SettingsError
from system.linux import request_tiles
from system.nvcc import find_compiler
from tunefarm.cli.options import AsJson, Data, Server, Token, print_json, print_plain, stdout
from tunefarm.client.client import ClientError
from tunefarm.embedded.folder import DataFolder
from tunefarm.embedded.service import connect
from tunefarm.settings import CommandSettings, load

NOISY = 0.1
MIN_FREE_BYTES = 2 << 30
PROBES = 30
# The features that the search and the estimate use, as spelled in /proc/cpuinfo.
FEATURES = (
    *("sse4_2", "avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "asimdhp", "asimdfhm", "i8mm", "bf16", "sve"),
)
# Runs in a separate process, because entering the sandbox is irreversible.
SANDBOX_PROBE = "from sandbox.privileges import unshare_namespaces; unshare_namespaces()"
CPU, CPU_INFO = Path("/sys/devices/system/cpu"), Path("/proc/cpuinfo")
PCI, DEV = Path("/sys/bus/pci/devices"), Path("/dev")
# NVIDIA's vendor id on the PCI bus, and the prefixes of the classes of display and compute devices.
NVIDIA, DISPLAY = "0x10de", "0x03"
OLDEST_DRIVER = 580  # of CUDA 13


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of a check, and the next step if there is a problem."""

    subject: str
    found: str
    state: Severity = Severity.OK
    mend: str = ""


Check = Callable[[CommandSettings], Iterator[Finding]]


def doctor(server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False) -> None:
    """Find problems of this machine and the service, with fixes."""
    settings = load(server=server, token=token, data=data)
    findings = [finding for check in CHECKS for finding in check(settings)]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        styles = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.PROBLEM: "red"}
        for finding in findings:
            mark = f"[{styles[finding.state]}]{finding.state}[/]"
            table.add_row(mark, escape(finding.subject), escape(finding.found))
        stdout().print(table)
        for finding in findings:
            if finding.mend:
                print_plain(f"{finding.subject}: {finding.mend}")
    problems = [finding.subject for finding in findings if finding.state is Severity.PROBLEM]
    if problems:
        raise CommandError(
            f"problems found: {', '.join(problems)}; the lines above say how to fix it", ExitCode.LOCAL
        )


def check_versions(_: CommandSettings) -> Iterator[Finding]:
    yield Finding("versions", f"tunefarm {_version('tunefarm')}, Python {platform.python_version()}")
    pins = dict(re.findall(r"^(apache-tvm(?:-ffi)?)==([\w.]+)", "\n".join(_requirements()), re.MULTILINE))
    installed = {name: _version(name) for name in pins}
    if not any(installed.values()):
        yield Finding("TVM", "not installed: this machine can submit and watch jobs, but not measure")
    elif installed != pins:
        asked = " ".join(f"{name}=={version}" for name, version in pins.items())
        found = ", ".join(f"{name} {version}" for name, version in installed.items())
        yield Finding("TVM", found, Severity.PROBLEM, f"other pairs crash: pip install {asked}")
    else:
        yield Finding("TVM", installed["apache-tvm"] or "")


def check_tools(_: CommandSettings) -> Iterator[Finding]:
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if found is None:
        mend = "install gcc: it links the tuned libraries on a machine that runs the service"
        yield Finding("C compiler", "none", Severity.WARNING, mend)
    else:
        yield Finding("C compiler", found)


def check_gpus(_: CommandSettings) -> Iterator[Finding]:
    # Without a driver there is no device file, but the bus has the GPU.
    on_bus = [
        path
        for path in PCI.glob("*")
        if _text(path / "vendor") == NVIDIA and _text(path / "class").startswith(DISPLAY)
    ]
    count = max(len(on_bus), len(list(DEV.glob("nvidia[0-9]*"))))
    compiler = find_compiler()
    if not count:
        yield Finding("GPU", "no NVIDIA GPU")
        yield Finding("CUDA", str(compiler.path if compiler else "no compiler, which only GPUs need"))
        return
    yield _driver(f"{count} NVIDIA GPU(s)")
    if compiler is None:
        mend = "pip install 'tunefarm[cuda]', or set CUDA_HOME to a toolkit, see docs/devices/gpu-host.md"
        yield Finding("CUDA", "no compiler, and GPUs are here", Severity.WARNING, mend)
    else:
        yield Finding("CUDA", str(compiler.path))


def check_threads(_: CommandSettings) -> Iterator[Finding]:
    usable, logical = len(os.sched_getaffinity(0)), os.cpu_count()
    smt = _text(CPU / "smt/active") == "1"
    found = f"{usable} of {logical} logical CPUs may be used" + (", two to a core" if smt else "")
    given = os.environ.get("TVM_NUM_THREADS")
    if given is None:
        yield Finding("threads", found)
    else:
        mend = "unset it where tunefarm runs: workers set it from the number of cores"
        yield Finding("threads", f"{found}; TVM_NUM_THREADS={given}", Severity.WARNING, mend)


def check_features(_: CommandSettings) -> Iterator[Finding]:
    words = set(_text(CPU_INFO).split())
    known = [name for name in FEATURES if name in words]
    found = f"{platform.machine()}: {', '.join(known) or 'no vector instructions known'}"
    if "amx_tile" in known and platform.machine() == "x86_64":
        try:
            request_tiles()
        except OSError as error:
            mend = "update the kernel to 5.16 or later: until then, workers here do without AMX"
            found = f"{found}; Linux doesn't permit AMX ({error.strerror})"
            yield Finding("CPU", found, Severity.WARNING, mend)
            return
    yield Finding("CPU", found)


def check_noise(_: CommandSettings) -> Iterator[Finding]:
    secs = []
    for _repeat in range(PROBES):
        began = time.perf_counter()
        sum(range(100_000))
        secs.append(time.perf_counter() - began)
    spread = noise(secs) or 0.0
    load = os.getloadavg()[0]
    governor = _text(CPU / "cpu0/cpufreq/scaling_governor")
    found = f"the same work varies by {spread:.0%}, load {load:.1f}" + (f", {governor}" if governor else "")
    if spread > NOISY or governor == "powersave":
        mend = "stop what else runs here; as root: cpupower frequency-set --governor performance"
        yield Finding("noise", found, Severity.WARNING, mend)
    else:
        yield Finding("noise", found)


def check_sandbox(_: CommandSettings) -> Iterator[Finding]:
    command = [sys.executable, "-c", SANDBOX_PROBE]
    # The packages of this checkout or installation.
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode == 0:
        yield Finding("sandbox", "the kernel grants namespaces")
    else:
        last = done.stderr.strip().rpartition("\n")[2]
        mend = "allow user namespaces, or install libseccomp2, see docs/security.md"
        yield Finding("sandbox", f"no namespaces ({last})", Severity.WARNING, mend)


def check_folder(settings: CommandSettings) -> Iterator[Finding]:
    folder = settings.data.expanduser().absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    found = f"{folder}, {free / (1 << 30):.0f} GiB free"
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding("data folder", found, Severity.PROBLEM, f"{there} can't be written: choose --data DIR")
    elif free < MIN_FREE_BYTES:
        yield Finding("data folder", found, Severity.WARNING, "free some space, or choose --data DIR")
    else:
        yield Finding("data folder", found)


def check_ports(settings: CommandSettings) -> Iterator[Finding]:
    running = DataFolder(settings.data.expanduser()).running()
    if running is not None:
        yield Finding("ports", f"{running.url} and {running.workers_address} are this folder's service")
        return
    for name, port in (("port", settings.port), ("grpc_port", settings.grpc_port)):
        subject = f"port {port}"
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                flag = name.replace("_", "-")
                mend = f"`tunefarm up --{flag} 0` takes another one"
                yield Finding(subject, f"taken ({error.strerror})", Severity.WARNING, mend)
            else:
                yield Finding(subject, "free")


def check_back_ends(_: CommandSettings) -> Iterator[Finding]:
    """Check the database and the broker if settings of a server or a scheduler name them."""
    url, broker = os.environ.get("TUNEFARM_DATABASE_URL"), os.environ.get("TUNEFARM_BROKER")
    if url:
        yield _back_end("database", lambda: _ping_database(url))
    if broker:
        yield _back_end("broker", lambda: _ping_broker(broker))


def check_service(settings: CommandSettings) -> Iterator[Finding]:
    try:
        with connect(settings) as service:
            theirs, ours = service.client.version(), _version("tunefarm")
            workers = service.client.workers()
    except (ClientError, CommandError, SettingsError) as error:
        asked = settings.server is not None
        yield Finding("service", str(error), Severity.PROBLEM if asked else Severity.OK)
        return
    found = f"{service.client.url}, tunefarm {theirs}"
    if theirs == ours:
        yield Finding("service", found)
    else:
        yield Finding("service", found, Severity.WARNING, f"this is {ours}: install the same version")
    if not workers:
        yield Finding(
            "workers", "none", Severity.WARNING, "start one with `tunefarm worker --server HOST:PORT`"
        )
    for worker in workers:
        subject = f"worker {worker.id}"
        if worker.connected and worker.unable:
            yield Finding(
                subject, worker.unable, Severity.PROBLEM, "see its log, and `tunefarm doctor` there"
            )
        elif worker.sandbox_gaps:
            mend = "docs/security.md says what contains measured code"
            yield Finding(subject, worker.sandbox_gaps, Severity.WARNING, mend)
        elif worker.tunefarm_version not in ("", theirs):
            mend = f"install tunefarm {theirs} there"
            yield Finding(subject, f"is of tunefarm {worker.tunefarm_version}", Severity.WARNING, mend)
        else:
            yield Finding(subject, "connected" if worker.connected else "away")


CHECKS: tuple[Check, ...] = (
    check_versions,
    check_tools,
    check_gpus,
    check_threads,
    check_features,
    check_noise,
    check_sandbox,
    check_folder,
    check_ports,
    check_back_ends,
    check_service,
)


def _driver(gpus: str) -> Finding:
    """Check NVIDIA's driver by its management library."""
    try:
        import pynvml
    except ImportError:
        return Finding("GPU", f"{gpus}; tunefarm's extra 'worker', which would measure them, isn't installed")
    try:
        pynvml.nvmlInit()
        version = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        mend = (
            f"install NVIDIA's driver {OLDEST_DRIVER} or newer and start the machine again; "
            "in a container, pass the GPU to it: `nvidia-smi` must show it"
        )
        return Finding("GPU", f"{gpus}, and no driver that answers ({error})", Severity.WARNING, mend)
    found = f"{gpus}, driver {version}"
    number = re.match(r"\d+", version)
    if number is not None and int(number[0]) < OLDEST_DRIVER:
        mend = (
            f"CUDA 13 needs NVIDIA's driver {OLDEST_DRIVER} or newer: install it and start the machine again"
        )
        return Finding("GPU", found, Severity.WARNING, mend)
    return Finding("GPU", found)


def _back_end(subject: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, look())
    except ImportError as error:
        return Finding(
            subject, str(error), Severity.PROBLEM, "pip install 'tunefarm[server,postgresql,redis]'"
        )
    except Exception as error:  # any exception of a driver is a finding
        return Finding(subject, str(error), Severity.PROBLEM, "docs/troubleshooting.md has these messages")


def _ping_database(url: str) -> str:
    from records.storage.database import Database

    database = Database(url)
    try:
        database.ping()
    finally:
        database.close()
    return database.name


def _ping_broker(broker: str) -> str:
    from scheduler.app import make_app

    with make_app(broker).connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, timeout=3)
        return str(connection.as_uri())


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires("tunefarm") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
