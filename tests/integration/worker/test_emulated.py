"""A worker's child on emulated processors, with fewer instruction sets than this one or than LLVM expects."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from compiler.lowering.trace import lower
from compiler.reading.subgraph import read_dag
from compiler.workload import to_json
from core.device import Device
from core.lease import Limits
from core.measurement import Measurement, Outcome
from core.profile import Profile
from search.policy import TuneContext, draw
from search.rules.space import generate
from tests import emulated
from tests.workloads import matmul
from worker.runner.executor import ChildConfig, Executor
from worker.runner.interface import BuildRequest

OBSTACLE = emulated.obstacle()
pytestmark = [
    pytest.mark.slow_lane(seconds=8),
    pytest.mark.timeout(600),
    pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE)),
]
PATIENT = Limits(build_timeout_s=120.0, run_timeout_s=120.0)


async def measured(without: tuple[str, ...]) -> tuple[Device, list[Measurement]]:
    """Return the device that a child finds, and measurements of two programs that the search draws for it."""
    config = ChildConfig(2, start_timeout_s=300.0, without=without)
    executor = Executor(config, os.environ)
    try:
        device = await executor.start()
        workload = matmul(32, 64, 32)
        dag = read_dag(workload)
        task = TuneContext(dag, generate(dag, device), device)
        programs = [proposal.program for proposal in draw(task, 2, np.random.default_rng(0))]
        traces = [lower(workload, program, device) for program in programs]
        requests = [BuildRequest(device.target, to_json(workload), trace, ()) for trace in traces]
        return device, [await executor.measure(one, PATIENT, requests) for one in requests]
    finally:
        await executor.close()


@pytest.mark.parametrize(
    ("processor", "without", "mcpu", "features", "mattr"),
    [
        ("Haswell", (), "haswell", {"avx", "avx2", "fma", "sse4_1", "sse4_2"}, []),
        ("Nehalem", (), "nehalem", {"sse4_1", "sse4_2"}, []),
        # LLVM knows a Zen 4 by its numbers, and the emulator has no AVX-512.
        (
            "EPYC-Milan,model=97",
            (),
            "znver4",
            {"avx", "avx2", "fma", "sse4_1", "sse4_2", "sse4a"},
            ["-avx512f", "-gfni", "-vaes", "-vpclmulqdq"],
        ),
        ("Haswell", ("avx",), "haswell", {"sse4_1", "sse4_2"}, ["-avx"]),
    ],
    ids=["avx2", "sse4.2", "hidden avx512", "avx given up"],
)
def test_candidates_use_only_instructions_of_the_processor(
    processor: str,
    without: tuple[str, ...],
    mcpu: str,
    features: set[str],
    mattr: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(sys, "executable", str(emulated.python(tmp_path, processor)))
    device, measurements = asyncio.run(measured(without))
    assert (device.mcpu, device.vector_bytes) == (mcpu, 32 if "avx2" in features else 16)
    # Features that this machine's kernel doesn't name are missing in the emulated one.
    assert features - {"sse4a"} <= set(device.features) <= features
    assert json.loads(device.target).get("mattr", []) == mattr
    assert [one.outcome for one in measurements] == [Outcome.OK] * 2, measurements


def test_an_emulated_processor_has_a_profile_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(emulated.python(tmp_path, "Haswell")))

    async def calibrated() -> Profile | None:
        executor = Executor(ChildConfig(2, start_timeout_s=300.0), os.environ)
        try:
            await executor.start()
            return await executor.calibrate(1 << 30)
        finally:
            await executor.close()

    profile = asyncio.run(calibrated())
    assert profile is not None
    assert "hertz" not in profile.derived
    assert profile.registers == 16
