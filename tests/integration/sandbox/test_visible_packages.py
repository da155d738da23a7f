"""A child sees what it needs: linked packages, compilers outside /usr, and files in closed folders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.worker.sandboxed import COMMANDS, ROOT, works

HERE = Path(__file__).parent
SYSTEMS = ("as it is", "root, only Landlock")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's"),
    pytest.mark.skipif(not all(map(works, SYSTEMS)), reason="needs root and unshare(1)"),
]

PARENT = """
import sys
from tests.integration.worker.sandboxed import enter_system
from compiler.children.child import run_child
enter_system(sys.argv[1])
with run_child("probe", b"", 100.0, 1 << 30) as (reply, status):
    sys.stdout.write(reply.read().decode())
sys.exit(status)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tunefarm-home-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def said_by_child(home: Path, system: str, probe: str, umask: int = 0o022, **env: str) -> str:
    """Return what a compile child prints that runs the probe. `home/site` is on Python's path."""
    (home / "probes").mkdir()
    (home / "probes/probe.py").write_text(probe)
    path = os.pathsep.join(map(str, (home / "probes", home / "site", ROOT)))
    command = [*COMMANDS[system], sys.executable, "-c", PARENT, system]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=120,
        umask=umask,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("system", SYSTEMS)
def test_packages_that_are_links_are_found(system: str, home: Path) -> None:
    """Folders as Nix and pipx link them, a chain of links, and every file of a package as uv links them."""
    site, store = home / "site", home / "store"
    write(store / "whole/__init__.py", "from whole.part import NAME")
    write(store / "whole/part.py", "NAME = 'whole'")
    write(store / "module.py", "NAME = 'module'")
    write(store / "archive/by_file/__init__.py", "from by_file.deep.part import NAME")
    write(store / "archive/by_file/deep/part.py", "NAME = 'by file'")
    write(store / "archive/space/inner/__init__.py", "NAME = 'in a namespace'")
    site.mkdir()
    (site / "some.dist-info").mkdir()
    (home / "hop").symlink_to(store)
    (site / "whole").symlink_to("../hop/whole")
    (site / "module.py").symlink_to(store / "module.py")
    for file in (store / "archive").rglob("*.py"):
        link = site / file.relative_to(store / "archive")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    probe = (
        "import by_file, module, space.inner, whole\n"
        "print(by_file.NAME, module.NAME, space.inner.NAME, whole.NAME, sep=', ')"
    )
    assert said_by_child(home, system, probe) == "by file, module, in a namespace, whole\n"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_compiler_outside_of_usr_links(system: str, home: Path) -> None:
    """Its `bin` is on the PATH. It finds its own library beside it."""
    parts, compiler = home / "gcc/lib/parts", home / "gcc/bin/g++"
    parts.mkdir(parents=True)
    (home / "empty.c").touch()
    subprocess.run(["gcc", "-c", home / "empty.c", "-o", home / "empty.o"], check=True)
    subprocess.run(["ar", "rc", parts / "libneeded.a", home / "empty.o"], check=True)
    write(compiler, f'#!/bin/sh\nexec {shutil.which("g++")} -B{parts}/ "$@" -lneeded\n')
    compiler.chmod(0o755)
    probe = (
        "import subprocess\n"
        "open('x.c', 'w').close()\n"
        "command = ['g++', '-shared', '-fPIC', 'x.c', '-o', 'x.so']\n"
        "print(subprocess.run(command, capture_output=True, text=True).stderr or 'linked')"
    )
    path = os.pathsep.join([str(compiler.parent), os.environ["PATH"]])
    assert said_by_child(home, system, probe, PATH=path) == "linked\n"


@pytest.mark.slow
@pytest.mark.parametrize("system", ["as it is", "readable"])
def test_a_root_with_a_closed_umask_measures(system: str) -> None:
    request = {"system": system, "traces": ["status"], "module_json": "", "user": "nobody"}
    request |= {"runner": "fault_runner:FaultRunner", "shared": []}
    worker = HERE.parent / "worker"
    command = [*COMMANDS[system], sys.executable, str(worker / "sandboxed.py"), json.dumps(request)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(worker)])}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, umask=0o077, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sandbox_gaps"] == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_root_with_a_closed_umask_compiles(system: str, home: Path) -> None:
    (home / "site").mkdir()
    probe = "import numpy, compiler.children.child\nprint('loaded')"
    assert said_by_child(home, system, probe, umask=0o077) == "loaded\n"
