"""A server with jobs in every state, and Chromium."""

from __future__ import annotations

import json
import math
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from sqlalchemy import insert, update
from sqlalchemy.orm import Session

from core.job import Budget, EndReason, JobState
from core.measurement import Footprint, Outcome
from core.profile import assumed_profile
from core.tokens import Scope
from core.worker import Vitals, WorkerState
from records import access, devices
from records.access import Token
from records.fleet import module_runs, workers
from records.fleet.workers import WorkerSession
from records.jobs import events, jobs, models, tasks
from records.jobs.jobs import JobRequest, OnnxRuntime
from records.jobs.tasks import TaskSpec
from records.schedules import cost_models, schedules, tvmscripts
from records.schedules.cost_models import Version
from records.schedules.tvmscripts import UNSCHEDULED, Tvmscript
from records.storage import blobs
from records.storage.statements import digest
from records.storage.tables import ModuleRunRow, TrialRow
from server.access.authentication import TOKEN_PREFIX, token_digest
from tests.devices import DEVICE
from tests.integration.server.conftest import Service, launch

CALIBRATED = replace(
    DEVICE, profile=assumed_profile(DEVICE.arch, DEVICE.features, DEVICE.cores), name="EPYC, 2 cores"
)
# Any user who may upload a model chooses its name.
EVIL = "<img src=x onerror=alert(1)>"
SIGNATURE = "float32[1,56,56,64], float32[3,3,64,64] -> float32[1,56,56,64]"
ADMIN, READER = (TOKEN_PREFIX + name.ljust(43, "_") for name in ("admin", "reader"))
# Names, weights, floating-point operations, and the seconds of the best program.
SUBGRAPHS = [
    ("fused_conv2d_add_relu", 4, 2.3e8, 310e-6),
    ("fused_conv2d1_add_add_relu", 4, 2.3e8, 290e-6),
    ("fused_conv2d2_add_relu", 1, 2.4e8, 420e-6),
    ("fused_conv2d3_add", 3, 1.3e7, 45e-6),
    ("fused_dense_add", 1, 1.0e6, 38e-6),
    ("max_pool2d", 1, 1.8e6, 52e-6),
    ("fused_conv2d4_add_relu", 2, 1.2e8, 160e-6),
    ("fused_conv2d5_add_relu", 2, 1.2e8, 150e-6),
    ("adaptive_avg_pool2d", 1, 2.5e4, 9e-6),
    ("softmax", 1, 5e3, 6e-6),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with jobs, without tokens."""
    service, stop = launch(tmp_path_factory.mktemp("dashboard"))
    with service.database.begin() as session:
        fill(session, time.time())
    yield service
    stop()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server that asks for a token, with an administrator's and a reader's."""
    service, stop = launch(tmp_path_factory.mktemp("guarded"), token="the bootstrap token")
    with service.database.begin() as session:
        for secret, scope in ((ADMIN, Scope.ADMIN), (READER, Scope.READ)):
            token = Token(f"id-{scope}", f"{scope} of the test", frozenset({scope}), 1.0)
            access.add_token(session, token, token_digest(secret))
    yield service
    stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    # Scoped to a module, because an event loop runs in this thread until it is closed, and other tests need
    # their own.
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page in a fresh session. Errors of its scripts fail the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    opened = context.new_page()
    opened.set_default_timeout(15_000)
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    yield opened
    context.close()
    # The browser itself reports answers like 401 as errors.
    assert [line for line in complaints if "Failed to load resource" not in line] == []


def fill(session: Session, now: float) -> None:
    """Store a finished job, one that is tuned, a queued, a failed and a cancelled one."""
    devices.put_class(session, CALIBRATED, calibrated=True)
    vitals = Vitals("0.1.0", "0.27.0", 1.2, 61.5, 5 << 30, 16, 5, "it sees other processes", "")
    workers.register(
        session, WorkerSession("epyc-1", "s1", WorkerState.READY, CALIBRATED, vitals=vitals), now
    )
    sick = replace(vitals, health_error="the compiler is missing: apt-get install gcc", temperature_c=None)
    workers.register(
        session, WorkerSession("board-2", "s2", WorkerState.PROBING, CALIBRATED, vitals=sick), now - 20
    )
    for number, (records, pairwise) in enumerate(((64, 0.71), (192, 0.83), (640, 0.88), (1600, 0.92))):
        metrics = {
            "trained_on": records,
            "learned": {"records": records // 5, "r2": pairwise - 0.1, "pairwise": pairwise, "recall": 0.6},
            "analytic": {"records": records // 5, "r2": 0.3, "pairwise": 0.69, "recall": 0.4},
            "tasks": {},
        }
        version = Version(CALIBRATED.key, records, now - 1e4, now - 9e3 + 900 * number, 0.4, metrics)
        cost_models.add(session, version, b"trees")

    def submit(job_id: str, name: str, age_s: float, *states: JobState, **ending: Any) -> None:
        add_job(session, job_id, name, now - age_s, *states, **ending)

    submit("job-done", "resnet18", 5000, JobState.IMPORTING, JobState.TUNING)
    measure(session, "job-done", now - 4990, 600)
    jobs.set_end_to_end(session, "job-done", "untuned", [0.0302, 0.0299, 0.0311, 0.0304])
    jobs.set_end_to_end(session, "job-done", "tuned", [0.0046, 0.0047, 0.0046, 0.0049])
    jobs.set_onnxruntime(session, "job-done", OnnxRuntime("1.31.1", (0.0061, 0.0060, 0.0062), 1.311))
    jobs.set_footprint(session, "job-done", Footprint(0.0075, 48_200_000, 0.0123))
    artifact = blobs.put(session, b"a tar file")
    jobs.set_artifacts(session, "job-done", tuned_sha=artifact)
    module_runs.add(session, "job-done", "published", artifact, now)
    session.execute(
        update(ModuleRunRow).values(state="done", outcome=Outcome.OK, run_s=[0.0051, 0.0052, 0.0050])
    )
    jobs.advance(
        session, "job-done", {JobState.TUNING}, JobState.DONE, now - 4700,
        message="4.65 ms, 6.5 times faster than untuned (30.3 ms)", end_reason=EndReason.TRIALS,
    )  # fmt: skip
    submit("job-cancelled", "dcgan", 4000, JobState.CANCELLED, message="cancelled")
    submit("job-failed", EVIL, 3000, JobState.IMPORTING, JobState.FAILED, error=f"no operator {EVIL}")
    submit("job-running", "mobilenet_v2", 120, JobState.IMPORTING, JobState.TUNING)
    measure(session, "job-running", now - 115, 180)
    jobs.set_onnxruntime(session, "job-running", OnnxRuntime("1.31.1", (0.0061, 0.0060, 0.0062)))
    for done in range(60, 181, 20):
        data = {"trials_done": done, "trials_issued": 200}
        events.append(session, "job-running", events.PROGRESS, data, now - 40 + done / 5)
    submit("job-queued", "bert_base", 30)


def add_job(
    session: Session, job_id: str, name: str, created_at: float, *states: JobState, **ending: Any
) -> None:
    """Store a job that went through the states, the last one with the `ending`."""
    model = blobs.put(session, b"a model")
    models.add(session, model, "resnet18", created_at)
    request = JobRequest(model, name, {"input": (1, 3, 224, 224)}, "native", Budget(600, 30.0), seed=7)
    jobs.create(session, job_id, request, jobs.Submission(created_at))
    for number, state in enumerate(states):
        jobs.set_device_class(session, job_id, CALIBRATED.key)
        before = {one for one in JobState if not one.finished}
        about = ending if number == len(states) - 1 else {}
        jobs.advance(session, job_id, before, state, created_at + 2 + number, **about)


def measure(session: Session, job_id: str, begun: float, count: int) -> None:
    """Store finished trials of ten subgraphs, each faster than the last; every twentieth fails."""
    rng = random.Random(job_id)
    specs = [
        TaskSpec(
            job_id,
            f"w{number}",
            name,
            weight,
            flops,
            True,
            "",
            (1,),
            signature=SIGNATURE,
            num_bytes=flops / 25,
        )
        for number, (name, weight, flops, _) in enumerate(SUBGRAPHS)
    ]
    specs[1] = replace(specs[1], layer="layer1.0.conv2")
    specs[-1] = replace(specs[-1], covered=False, reason="it has no loops to schedule")
    specs.append(replace(specs[0], workload_hash="w0-winograd", variant="winograd", variant_of="w0"))
    for spec in specs:
        tasks.put_workload(session, spec.workload_hash, "{}")
    tasks.add_tasks(session, job_id, specs)
    found = [task for task in tasks.for_job(session, job_id) if task.covered]
    best = {f"w{number}": secs for number, (*_, secs) in enumerate(SUBGRAPHS)} | {"w0-winograd": 240e-6}
    shares = [math.sqrt(best[task.workload_hash] * task.weight) for task in found]
    rows, tried = [], dict.fromkeys(best, 0)
    for number in range(count):
        task = found[number] if number < len(found) else rng.choices(found, shares)[0]
        tried[task.workload_hash] += 1
        slower = 1.0 + 9.0 * rng.random() ** 2 / tried[task.workload_hash] ** 0.7
        secs = best[task.workload_hash] * slower
        trace = json.dumps([[job_id, number]])
        row = {
            "job_id": job_id,
            "task_id": task.id,
            "workload_hash": task.workload_hash,
            "round": number // 64,
            "program": {"sketch": "0", "values": [number]},
            "trace": trace,
            "trace_sha": digest(trace),
            "predicted_s": secs * rng.uniform(0.7, 1.5),
            "estimated_s": secs * rng.uniform(0.3, 1.8),
            "state": "done",
            "attempts": 1,
            "created_at": begun,
            "finished_at": begun + number * 0.6,
        }
        if number % 20 == 13:
            outcome = rng.choice([Outcome.BUILD_ERROR, Outcome.RUN_TIMEOUT])
            row |= {"outcome": outcome, "error": f"LLVM ERROR: {EVIL} takes too many registers"}
            row |= {"run_s": [], "latency_s": None}
        else:
            row |= {"outcome": Outcome.OK, "error": "", "latency_s": secs}
            row["run_s"] = [secs, secs * 1.01, secs * 1.03]
        rows.append(row)
    ids = list(session.scalars(insert(TrialRow).returning(TrialRow.id), rows))
    schedules.put_trials(session, ids, begun + count)
    [fastest] = schedules.fastest(session, CALIBRATED.key, "w0", 1)
    before = Tvmscript(
        "w0", UNSCHEDULED, "for i, j, k in T.grid(56, 56, 64):\n    C[i, j] += A[i, k] * B[k, j]"
    )
    text = "for i_0 in T.parallel(14):\n    for j_0, k in T.grid(4, 64):\n        ..."
    decisions = "C SSRSRS\n  S0 i=14\n  S1 j=4\n  unroll 512"
    tvmscripts.add(session, [before, Tvmscript("w0", digest(fastest.trace), text, decisions)])
    jobs.count(session, job_id, issued=count, done=count)


def add_schedules(session: Session, count: int) -> None:
    """Store one measured trial for each of `count` subgraphs named `many`."""
    job_id, now = "job-cancelled", time.time()
    specs = [
        TaskSpec(job_id, f"many-{number}", f"many {number}", 1, 1e6, True, "", ()) for number in range(count)
    ]
    for spec in specs:
        tasks.put_workload(session, spec.workload_hash, "{}")
    tasks.add_tasks(session, job_id, specs)
    rows = [
        {
            "job_id": job_id,
            "task_id": task.id,
            "workload_hash": task.workload_hash,
            "round": 0,
            "program": {},
            "trace": "[[],[]]",
            "trace_sha": digest("[[],[]]"),
            "predicted_s": 1e-3,
            "estimated_s": 1e-3,
            "state": "done",
            "attempts": 1,
            "created_at": now,
            "finished_at": now,
            "outcome": Outcome.OK,
            "error": "",
            "latency_s": 1e-3,
            "run_s": [1e-3],
        }
        for task in tasks.for_job(session, job_id)
    ]
    schedules.put_trials(session, list(session.scalars(insert(TrialRow).returning(TrialRow.id), rows)), now)
