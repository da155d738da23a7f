"""A worker with disabled instruction sets has its own device class, whose code doesn't use them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compiler.target import detect_device
from tests.devices import EMULATED_CLASSES
from tests.processes import service, worker

pytestmark = [
    pytest.mark.slow_lane(seconds=22),
    pytest.mark.timeout(600),
    pytest.mark.skipif("avx512f" not in detect_device().features, reason="has no AVX-512 to give up"),
]
WIDEST = {"avx512": "zmm", "avx2": "ymm", "sse4.2": "xmm"}


def widest_register(library: Path) -> str:
    """Return the widest vector registers that the code uses: xmm, ymm or zmm."""
    code = subprocess.run(
        ["objdump", "--disassemble", str(library)], check=True, capture_output=True, text=True
    )
    return max(re.findall(r"%([xyz]mm)", code.stdout))


def test_one_machine_is_three_device_classes(model: Path, tmp_path: Path) -> None:
    classes = set()
    with service(tmp_path) as farm:
        for name, without in EMULATED_CLASSES.items():
            features = ["--features", ",".join(f"-{one}" for one in without)] if without else []
            with worker(farm, name, "--threads", "2", *features):
                found = farm.shown(name)["device_class"]
                tuning = farm.start_tuning(
                    model, "--trials", "8", "--target", found, "--output", f"{name}-tuned"
                )
                out, errors = tuning.communicate()
            assert tuning.returncode == 0, errors
            assert json.loads(out)["job"]["state"] == "done"
            assert widest_register(tmp_path / f"{name}-tuned" / "model.so") == WIDEST[name]
            classes.add(found)
    assert len(classes) == 3


def test_an_embedded_stack_gives_up_instruction_sets(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tunefarm", "compile", str(model), "--output", "out"]
    command += ["--features", "-avx512f"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert widest_register(tmp_path / "out" / "model.so") == "ymm"


@pytest.mark.slow_lane(seconds=2)
@pytest.mark.parametrize("way", ["flag", "setting"])
def test_an_embedded_stack_says_what_cannot_be_given_up(
    way: str, model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    flags = ["--features", "-xop"] if way == "flag" else []
    told = environment if way == "flag" else environment | {"TUNEFARM_WORKER_FEATURES": "-xop"}
    command = [sys.executable, "-m", "tunefarm", "compile", str(model), *flags]
    done = subprocess.run(command, env=told, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 8
    assert "this machine has no xop to give up: leave it out" in done.stderr
    assert not list(tmp_path.rglob("*.log")), "no process was started"
