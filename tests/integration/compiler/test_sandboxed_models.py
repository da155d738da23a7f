"""Untrusted models are imported and compiled in a child process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from compiler.children import child, models
from compiler.children.models import CompileLimits, compile_tuned, compile_untuned, import_model
from compiler.importing.model import extract_tasks, fuse, read_onnx
from compiler.importing.spec import ModelError
from compiler.packaging.artifact import ArtifactError
from tests.children import child_of, kill_the_child
from tests.onnx_models import Builder, residual
from tests.shared_libraries import shared_library

ROOT = Path(__file__).parents[3]
TARGET = '{"kind":"llvm","num-cores":2}'
# Replaces the child after it has imported the model.
IMPORTED = b'{"inputs": [], "outputs": [], "tasks": [], "computed_in": "float32", "is_onnx": true}'


def test_a_model_is_imported_as_in_this_process() -> None:
    shapes = {"input": (2, 3, 8, 8)}
    imported = import_model(residual(batch="n"), shapes, TARGET)
    model = read_onnx(residual(batch="n"), shapes)
    assert (imported.inputs, imported.outputs) == (model.inputs, model.outputs)
    own = [task for task in imported.tasks if not task.variant]
    assert own == extract_tasks(fuse(model, TARGET))


@pytest.mark.slow_lane(seconds=5)
def test_both_libraries_are_compiled() -> None:
    untuned, tuned = io.BytesIO(), io.BytesIO()
    imported = compile_untuned(residual(), {}, TARGET, untuned)
    compile_tuned(residual(), {}, TARGET, {}, tuned)
    assert imported == import_model(residual(), {}, TARGET)
    assert untuned.getvalue().startswith(b"\x7fELF")
    assert tuned.getvalue().startswith(b"\x7fELF")
    assert tuned.getvalue() != untuned.getvalue()


def test_an_import_error_is_raised() -> None:
    with pytest.raises(ModelError, match="--shape input="):
        import_model(residual(batch="n"), {}, TARGET)


def test_a_compilation_error_is_raised() -> None:
    workload = import_model(residual(), {}, TARGET).tasks[0].workload_hash
    with pytest.raises(ArtifactError, match="doesn't apply"):
        compile_tuned(residual(), {}, TARGET, {workload: "no trace"}, io.BytesIO())


def test_an_import_that_takes_too_long_is_killed() -> None:
    start = time.monotonic()
    with pytest.raises(ModelError, match=r"importing the model takes longer than 0\.2 s"):
        import_model(residual(), {}, TARGET, CompileLimits(import_s=0.2))
    assert time.monotonic() - start < 5


def test_an_import_that_takes_too_much_memory_fails() -> None:
    b = Builder()
    large = b.constant(np.ones((64, 1 << 20), np.float32))
    data = b.model({"input": [64, 1 << 20]}, {b.op("Add", "input", large): [64, 1 << 20]})
    with pytest.raises(ModelError, match=r"^importing the model |too much memory|bad_alloc"):
        import_model(data, {}, TARGET, CompileLimits(memory_bytes=64 << 20))


def test_the_message_says_that_the_machine_has_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is killed, as Linux does when memory runs out."""
    monkeypatch.setattr(models, "usable_memory_bytes", lambda: 512 << 20)
    killer = threading.Thread(target=kill_the_child)
    killer.start()
    says = r"\(SIGKILL\): a model file of .* GB may take 1.07 GB of memory and the scheduler may use 0.537 GB"
    with pytest.raises(ModelError, match=says):
        compile_untuned(residual(), {}, TARGET, io.BytesIO())
    killer.join()


def test_a_small_file_cannot_ask_for_gigabytes() -> None:
    b = Builder()
    begin, end, step = (b.constant(np.int64(number)) for number in (0, 1 << 28, 1))
    data = b.model({"input": [1]}, {b.op("Range", begin, end, step): [1 << 28]})
    assert len(data) < 500
    with pytest.raises(ModelError, match=r"computes a constant of 2147483648 bytes; the limit is"):
        import_model(data, {}, TARGET)


def test_a_child_that_is_killed_is_a_model_error() -> None:
    """The real child is killed while it works."""
    killer = threading.Thread(target=kill_the_child)
    killer.start()
    with pytest.raises(ModelError, match=r"importing the model crashed the compiler \(SIGKILL\)"):
        compile_untuned(residual(), {}, TARGET, io.BytesIO())
    killer.join()


SLEEPER = """
import os, time
from pathlib import Path

Path(os.environ["TMPDIR"], "begun").touch()
time.sleep(600)
"""
PARENT = """
from compiler.children.child import run_child
with run_child('sandboxed_sleeper', b'', 600.0, 1 << 30):
    pass
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_child_does_not_outlive_its_parent(when: str, tmp_path: Path) -> None:
    """The parent is killed before the child has entered the sandbox, or after."""
    (tmp_path / "sandboxed_sleeper.py").write_text(SLEEPER)
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", PARENT], env=os.environ | path) as parent:
        process = child_of(parent.pid, "sandboxed_sleeper")
        while when == "after" and not list(tmp_path.glob("*/begun")):
            assert process.is_running()
            time.sleep(0.01)
        parent.kill()
    assert psutil.wait_procs([process], timeout=30) == ([process], [])
    assert len(list(tmp_path.glob("*/begun"))) == (when == "after")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_child_that_can_not_read_python_says_so(tmp_path: Path) -> None:
    """A package of another user may be closed to root without capabilities."""
    package = tmp_path / "closed_package.py"
    package.touch(mode=0o600)
    os.chown(package, 12345, 12345)
    program = "from compiler.children.models import import_model; import_model(b'x', {}, 'llvm')"
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | path, capture_output=True, text=True
    )
    assert "ModelError: the compiler can't be started in its sandbox on this machine: " in done.stderr
    assert f"{package} can't be read without root's rights" in done.stderr


def test_a_child_sees_no_passwords(acts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acts.write_text("import json, os; print(json.dumps(dict(os.environ)))")
    secrets = {
        "TUNEFARM_DATABASE_URL": "postgresql://tunefarm:password@db/tunefarm",
        "TUNEFARM_BROKER": "redis://:password@redis",
        "TUNEFARM_TOKEN": "password",
        "AWS_SECRET_ACCESS_KEY": "password",
    }
    for name, value in {**secrets, "TVM_LOG_DEBUG": "seen"}.items():
        monkeypatch.setenv(name, value)
    with child.run_child("compiler.children.models", b"", 60.0, 1 << 30) as (reply, status):
        seen = json.load(reply)
    assert status == 0
    assert seen["TVM_LOG_DEBUG"] == "seen"
    assert not seen.keys() & secrets.keys()
    assert "password" not in "".join(seen.values())


KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.fixture
def acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program that stands in for the child."""
    script, python = tmp_path / "actor.py", tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return script


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (KILLED, r"crashed the compiler \(SIGSEGV\)"),
        ("raise SystemExit(3)", r"ended the compiler \(exit status 3\)"),
        ("print('TVM was here')", r"ended the compiler \(exit status 0\)"),
    ],
)
def test_a_child_that_dies_importing_is_a_model_error(script: str, message: str, acts: Path) -> None:
    acts.write_text(script)
    with pytest.raises(ModelError, match=f"^importing the model {message}"):
        import_model(residual(), {}, TARGET)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (KILLED, r"crashed the compiler \(SIGSEGV\)"),
        ("raise SystemExit(3)", r"ended the compiler \(exit status 3\)"),
        ("print('{\"library_bytes\": 9}\\nshort', end='')", r"ended the compiler \(exit status 0\)"),
        ("import time; time.sleep(600)", r"takes longer than 1 s"),
    ],
)
def test_a_child_that_dies_compiling_is_an_artifact_error(script: str, message: str, acts: Path) -> None:
    acts.write_text(f"print({IMPORTED.decode()!r}, flush=True)\n{script}")
    with pytest.raises(ArtifactError, match=f"^compiling the model {message}"):
        compile_untuned(residual(), {}, TARGET, io.BytesIO(), CompileLimits(import_s=0.5, build_s=0.5))


def writes(library: bytes, zeros: int = 0) -> str:
    """Return the program of a child that replies with a library and bytes behind it."""
    return f"""
import sys
sys.stdout.buffer.write({IMPORTED!r} + b'\\n{{"library_bytes": {len(library) + zeros}}}\\n')
sys.stdout.buffer.write({library!r} + bytes({zeros}))
"""


def test_a_crash_that_does_not_come_back_is_only_logged(
    acts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library, crashed = shared_library(), tmp_path / "crashed"
    crashes_once = f"""
import faulthandler, os, pathlib
crashed = pathlib.Path({str(crashed)!r})
if not crashed.exists():
    crashed.touch()
    faulthandler.enable()
    os.kill(os.getpid(), 11)
"""
    acts.write_text(crashes_once + writes(library))
    kept = io.BytesIO()
    compile_tuned(residual(), {}, TARGET, {}, kept)
    assert kept.getvalue() == library
    (line,) = caplog.messages
    assert line.startswith("compiler.children.models crashed the compiler (SIGSEGV): Fatal Python error:")
    assert "actor.py" in line


@pytest.mark.parametrize(
    ("library", "message"),
    [
        (shared_library(["memcpy", "system"]), "calls what no compiled program needs: system"),
        (shared_library(needed=["libevil.so.1"]), "asks for files that no compiled program needs"),
        (shared_library() + b".extern .func (.param .b32 r) run (.param .b64 x);", "PTX that calls"),
        (b"\x7fELF" + bytes(1000), "can't be read"),
        (bytes(1000), "can't be read"),
        (b"", "can't be read"),
    ],
)
def test_the_library_of_a_child_that_was_taken_over_is_refused(
    library: bytes, message: str, acts: Path
) -> None:
    """The child skips its own check, and replies with anything."""
    acts.write_text(writes(library))
    kept = io.BytesIO()
    with pytest.raises(ArtifactError, match=f"^the compiled library is refused: .*{message}"):
        compile_tuned(residual(), {}, TARGET, {}, kept)
    assert kept.getvalue() == b""


LARGE = 96 << 20
SMALL = shared_library()
WRITES_MUCH = writes(SMALL, LARGE - len(SMALL))


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
def test_a_library_is_never_in_memory(acts: Path, tmp_path: Path) -> None:
    acts.write_text(WRITES_MUCH)
    with (tmp_path / "library").open("w+b") as library:
        compile_untuned(residual(), {}, TARGET, library)
        assert library.tell() == LARGE
    _, most = tracemalloc.get_traced_memory()
    assert most < LARGE / 2


@pytest.mark.usefixtures("traced")
def test_a_library_that_is_too_large_is_not_read(acts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MAX_REPLY_BYTES", 1024)
    monkeypatch.setattr(models, "LIBRARY_PER_MODEL_BYTE", 1)
    acts.write_text(WRITES_MUCH)
    with pytest.raises(ArtifactError, match=r"^compiling the model ended the compiler"):
        compile_untuned(residual(), {}, TARGET, io.BytesIO())
    _, most = tracemalloc.get_traced_memory()
    assert most < LARGE / 2


def test_a_huge_file_starts_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MAX_MODEL_BYTES", 10)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ModelError, match="the limit is 10"):
        import_model(residual(), {}, TARGET)
