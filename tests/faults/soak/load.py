"""The users of a soak: they submit jobs, look up best schedules, and delete old jobs."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from core.job import Build, JobState
from records.jobs import jobs
from records.jobs.jobs import JobNotFound
from records.storage.database import StorageError
from tests.faults.job_run import product
from tests.faults.runner import run_s
from tests.faults.soak.accounts import Accounts
from tests.faults.soak.rig import SoakRig

WIDTHS = (32, 48, 64)
UNFINISHED = 3
TRIALS = 48
# Simulated hours after which a finished job is deleted.
KEPT_HOURS = 1.0


@dataclass
class Submitted:
    """A submitted job. `id` is "" until a server acknowledges it."""

    key: str
    model: bytes
    body: dict[str, Any]
    id: str = ""
    ended_at: float | None = None
    deleted: bool = False


@dataclass
class Load:
    """`tick` does the work that is due. Requests that fail because a server is unavailable are repeated at
    another server.
    """

    rig: SoakRig
    draw: random.Random
    kept_s: float
    accounts: Accounts
    submitted: list[Submitted] = field(default_factory=list)
    asks: int = 0
    unanswered: int = 0

    def __post_init__(self) -> None:
        self._server = itertools.cycle(range(len(self.rig.servers)))
        self._clients = [self.rig.http(number) for number in range(len(self.rig.servers))]
        self._best_s: dict[tuple[str, str], float] = {}

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def tick(self, submits: bool = True) -> None:
        with self._tolerating():
            self._note_ends()
        with self._tolerating():
            if submits and len(self.unfinished) < UNFINISHED:
                self._ask_for_job()
            self._submit()
        with self._tolerating():
            self._look_up()
        with self._tolerating():
            self._delete_old()

    @property
    def unfinished(self) -> list[Submitted]:
        return [one for one in self.submitted if one.ended_at is None]

    @property
    def ended(self) -> int:
        return sum(one.ended_at is not None for one in self.submitted)

    @contextmanager
    def _tolerating(self) -> Iterator[None]:
        try:
            yield
        except (httpx.TransportError, StorageError):
            self.unanswered += 1
        except httpx.HTTPStatusError as error:
            self.unanswered += 1
            if error.response.status_code < 500:
                self.accounts.wrong(f"{error}: {error.response.text[:300]}")

    def _client(self) -> httpx.Client:
        return self._clients[next(self._server)]

    def _ask_for_job(self) -> None:
        device = self.draw.choice(self.rig.devices)
        # The builder has the toolchain of one class only.
        builds = [Build.BUILDER, Build.DEVICE] if device == self.rig.devices[0] else [Build.DEVICE]
        body = {
            "trials": TRIALS,
            "target": device.key,
            "seed": self.draw.randrange(1 << 30),
            "build": self.draw.choice(builds),
        }
        width = self.draw.choice(WIDTHS)
        self.submitted.append(Submitted(f"soak-{len(self.submitted)}", product(width), body))

    def _submit(self) -> None:
        for one in self.submitted:
            if not one.id:
                client = self._client()
                # A model without recent jobs has been deleted.
                stored = client.post("/v1/models", content=one.model).raise_for_status().json()
                body = one.body | {"model": stored["sha256"]}
                answer = client.post("/v1/jobs", json=body, headers={"Idempotency-Key": one.key})
                one.id = answer.raise_for_status().json()["id"]

    def _note_ends(self) -> None:
        with self.rig.database.begin() as session:
            for one in self.unfinished:
                if not one.id:
                    continue
                try:
                    job = jobs.get(session, one.id)
                except JobNotFound:
                    self.accounts.wrong(f"job {one.id}, which a server acknowledged, is gone")
                    one.ended_at = time.monotonic()
                    continue
                if job.state.finished:
                    if job.state is not JobState.DONE:
                        self.accounts.wrong(f"job {one.id} ended as {job.state.value}: {job.error}")
                    self.accounts.close(session, job)
                    one.ended_at = time.monotonic()

    def _look_up(self) -> None:
        """Look up every best schedule: it must be a measured one, and never slower than before."""
        for workload, device_class in list(self.accounts.traces):
            query = {"workload": workload, "target": device_class}
            answer = self._client().get("/v1/schedules/best", params=query).raise_for_status().json()
            self.asks += 1
            before = self._best_s.get((workload, device_class), answer["latency_s"])
            if abs(answer["latency_s"] - run_s(answer["trace"])) > 1e-12:
                self.accounts.wrong(f"the best schedule of {workload} has not the time of its trace")
            if answer["latency_s"] > before:
                self.accounts.wrong(f"the best schedule of {workload} got slower: {before}, now {answer}")
            self._best_s[workload, device_class] = answer["latency_s"]

    def _delete_old(self) -> None:
        for one in self.submitted:
            if one.ended_at is None or one.deleted or time.monotonic() < one.ended_at + self.kept_s:
                continue
            answer = self._client().delete(f"/v1/jobs/{one.id}")
            # A deletion with a lost answer has happened. Others may have to wait for a scheduler.
            if answer.status_code == 409:
                continue
            if answer.status_code != 404:
                answer.raise_for_status()
            one.deleted = True
