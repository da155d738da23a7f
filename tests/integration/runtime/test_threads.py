"""The number of threads of a model, in processes with several models, threads and forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from tunefarm_runtime import RunError, load

from tests.compiled_models import compile_model, elementwise

# Prepended to separate programs, because the tests' process already has a pool.
PRELUDE = """
import os, signal, sys, time
from pathlib import Path
import numpy as np, tunefarm_runtime, tvm_ffi
signal.alarm(60)
folder = sys.argv[1]
x = np.ones((512, 512), "float32")
def works(model):
    return bool((model(x)[0] == -1).all())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose kernel is parallel, tuned for two threads."""
    model = elementwise("Neg", TensorProto.FLOAT, (512, 512))
    return compile_model(model, tmp_path_factory.mktemp("compiled") / "neg", threads=2, scheduled=True)


def program(folder: Path, text: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TVM_")}
    command = [sys.executable, "-c", PRELUDE + text, str(folder)]
    done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("threads", [0, -1, 1025, 2**63, True, 1.0, float("nan"), "2"])
def test_a_number_of_threads_is_checked(threads: Any, folder: Path) -> None:
    with pytest.raises(RunError, match="threads must be a number between 1 and 1024, not "):
        load(folder, threads=threads)


@pytest.mark.parametrize("value", ["0", "-1", "many", "1e3", "99999999999999999999"])
def test_the_variable_is_checked(value: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", value)
    with pytest.raises(RunError, match="TVM_NUM_THREADS must be a number between 1 and 1024, not "):
        load(folder)


@pytest.mark.parametrize(
    ("given", "variables", "counted"),
    [("", {}, 2), ("", {"TVM_NUM_THREADS": "1"}, 1), (", threads=3", {}, 3)],
)
def test_the_number_is_the_argument_the_variable_or_the_models(
    given: str, variables: dict[str, str], counted: int, folder: Path
) -> None:
    text = f"""
model = tunefarm_runtime.load(folder{given})
assert works(model)
print(model.threads, len(os.listdir("/proc/self/task")))
"""
    expected = min(counted, len(os.sched_getaffinity(0))) if not given else counted
    before = int(program(folder, 'print(len(os.listdir("/proc/self/task")))'))
    assert program(folder, text, **variables) == f"{expected} {before + expected - 1}"


@pytest.mark.parametrize("threads", [1, 2])
def test_the_callers_thread_keeps_its_processors(threads: int, folder: Path) -> None:
    """TVM would bind it to the first ones, and all processes that it starts."""
    text = f"""
before = os.sched_getaffinity(0)
assert works(tunefarm_runtime.load(folder, threads={threads}))
assert os.sched_getaffinity(0) == before, os.sched_getaffinity(0)
"""
    program(folder, text)


def test_an_idle_thread_soon_sleeps(folder: Path) -> None:
    """TVM's own setting is a tenth of a second of yields after each call, which other processes notice."""
    text = """
def ticks(thread):
    state, *fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return state, int(fields[10]) + int(fields[11])

before = set(os.listdir("/proc/self/task"))
assert works(tunefarm_runtime.load(folder, threads=2))
[helper] = set(os.listdir("/proc/self/task")) - before
while ticks(helper)[0] != "S":
    time.sleep(0.001)
print(ticks(helper)[1] * 1000 // os.sysconf("SC_CLK_TCK"))
"""
    assert int(program(folder, text)) < 100, "milliseconds of CPU time"


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs a processor for each thread")
def test_a_call_after_a_pause_wakes_threads_elsewhere_and_lets_them_move_again(folder: Path) -> None:
    text = """
import tunefarm_runtime.threads
tunefarm_runtime.threads._SHORT_S = 0.0
os.sched_setaffinity(0, range(os.cpu_count()))  # the process of the tests may have fewer
model, allowed, bound = tunefarm_runtime.load(folder, threads=2), os.sched_getaffinity(0), []
bind = os.sched_setaffinity
os.sched_setaffinity = lambda *given: (bound.append(given), bind(*given))
assert works(model)
bound.clear()
time.sleep(0.01)
assert works(model)
(thread, one), (same, all_of_them) = bound
assert thread == same != os.getpid() and str(thread) in os.listdir("/proc/self/task")
assert len(one) == 1 and one < all_of_them == allowed
assert os.sched_getaffinity(thread) == os.sched_getaffinity(0) == allowed
"""
    program(folder, text)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_that_a_user_binds_stay_bound(threads: int, folder: Path) -> None:
    text = f"""
import tunefarm_runtime.threads
tunefarm_runtime.threads._SHORT_S = 0.0
os.sched_setaffinity = None
model = tunefarm_runtime.load(folder, threads={threads})
for _ in range(3):
    assert works(model)
    time.sleep(0.01)
"""
    program(folder, text, TVM_BIND_THREADS="1")


def test_each_model_of_a_process_has_its_own_number(folder: Path) -> None:
    text = """
models = {count: tunefarm_runtime.load(folder, threads=count) for count in (1, 3, 2)}
used = tvm_ffi.get_global_func("runtime.NumThreads")
for count in (1, 3, 2, 1, 2, 3):
    assert works(models[count])
    assert used() == count, (used(), count)
    assert models[count].threads == count
"""
    program(folder, text)


def test_a_later_model_may_use_more_threads(folder: Path) -> None:
    text = """
first = tunefarm_runtime.load(folder, threads=2)
assert works(first)
threads = len(os.listdir("/proc/self/task"))
second = tunefarm_runtime.load(folder, threads=4)
assert works(second) and works(first)
print(len(os.listdir("/proc/self/task")) - threads)
"""
    assert program(folder, text) == "4", "a thread that calls, and three that help it"


def test_a_forked_process_runs_models_that_its_parent_has_run(folder: Path) -> None:
    text = """
model = tunefarm_runtime.load(folder, threads=2)
assert works(model)
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(0 if works(model) and works(tunefarm_runtime.load(folder, threads=2)) else 1)
assert os.waitpid(child, 0)[1] == 0
assert works(model)
"""
    program(folder, text)


def test_calls_of_several_threads_take_turns(folder: Path) -> None:
    model = load(folder)
    barrier = threading.Barrier(4)

    def call(seed: int) -> bool:
        x = np.random.default_rng(seed).standard_normal((512, 512), dtype=np.float32)
        barrier.wait()
        return all(np.array_equal(model(x)[0], -x) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(4)))


def test_models_of_several_threads_run_at_once(tmp_path: Path) -> None:
    folder = compile_model(elementwise("Neg", TensorProto.FLOAT, (8, 8)), tmp_path / "neg")

    def call(seed: int) -> bool:
        model = load(folder)
        x = np.random.default_rng(seed).standard_normal((8, 8), dtype=np.float32)
        return all(np.array_equal(model(x)[0], -x) for _ in range(100))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(8)))
