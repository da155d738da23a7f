"""A service over real HTTP whose only job goes from queued to an end that the test chooses."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from core.job import JobState
from tests.unit.tunefarm.answering import Reply, Request, answering, json_reply
from tests.unit.tunefarm.samples import cost_model, job, task
from tunefarm.client.values import Footprint, OnnxRuntime, Schedule


@dataclass
class FakeService:
    """`looks` counts reads of the job, which is done at the third."""

    end: JobState = JobState.DONE
    error: str | None = None
    refusal: dict[str, Any] | None = None
    url: str = ""
    looks: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    workers: list[dict[str, Any]] = field(default_factory=lambda: [dict(WORKER)])
    device_classes: list[dict[str, Any]] = field(default_factory=list)
    acted: list[str] = field(default_factory=list)
    reservations: list[dict[str, Any]] = field(default_factory=list)
    best: Schedule = field(
        default_factory=lambda: Schedule("abc", "cafe", "[[],[]]", 1e-3, (1e-3,), "{}", "import")
    )
    module_json: str = "{}"
    members: tuple[str, ...] = ()
    job_ids: tuple[str, ...] = ("j1",)

    def answer(self, request: Request) -> Reply:
        method, path = request.method, request.path
        if method == "POST" and self.refusal is not None:
            return json_reply(self.refusal, self.refusal["status"])
        if method == "DELETE":
            self.acted.append(path)
            if path.startswith("/v1/schedules/imported"):
                return json_reply({"device_class": "cafe", "deleted": 5})
            return Reply(204)
        if path.endswith("/events"):
            return Reply(200, b"id: 1\nevent: state\ndata: {}\n\n", {"Content-Type": "text/event-stream"})
        if path.endswith("/artifact"):
            return Reply(200, _artifact())
        return json_reply(self._value(method, path, request.content))

    def _value(self, method: str, path: str, body: bytes) -> Any:
        if path.startswith("/v1/models"):
            return {"sha256": "ab", "name": "net", "size": len(body)}
        if path.endswith("/tasks"):
            return {"items": [asdict(task("conv1", weight=2, best_s=0.003))]}
        if path.endswith(":cancel"):
            return asdict(job(state=JobState.CANCELLED))
        if path.startswith("/v1/cost-models"):
            untold = cost_model(device_name="another", metrics=None)
            return {"items": [] if path.endswith("toaster") else [asdict(cost_model()), asdict(untold)]}
        if path.startswith("/v1/schedules/best"):
            return asdict(self.best)
        if path.startswith("/v1/workloads/"):
            return {"hash": "abc", "module_json": self.module_json}
        if path in (listed := self._listed()):
            return listed[path]
        if path.startswith("/v1/workers/"):
            self.acted.append(path)
            if path.endswith(":reserve"):
                self.reservations.append(json.loads(body))
            return self.workers[0]
        if (method, path) == ("POST", "/v1/jobs"):
            self.requests.append(json.loads(body))
            return asdict(replace(job(state=JobState.QUEUED, members=self.members), **self._submitted()))
        if path.startswith("/v1/jobs?"):
            return {"items": [asdict(job(id=one)) for one in self.job_ids], "next": None}
        return asdict(replace(self._job(), **self._submitted(path.rpartition("/j")[2])))

    def _submitted(self, number: str = "") -> dict[str, Any]:
        """Return the id and the target of the job with this number, or of the last one."""
        at = int(number) if number.isdigit() else len(self.requests)
        target = self.requests[at - 1].get("target", "native") if 0 < at <= len(self.requests) else "native"
        return {"id": f"j{max(at, 1)}", "target": target}

    def _listed(self) -> dict[str, Any]:
        return {
            "/openapi.json": {"info": {"version": "0.0.9"}},
            "/v1/device-classes": {"items": self.device_classes},
            "/v1/schedules:query": {"schedules": {}},
            "/v1/workers": {"items": self.workers},
        }

    def _job(self) -> Any:
        self.looks += 1
        if self.looks < 3:
            return job(state=JobState.TUNING, trials_done=self.looks, members=self.members)
        found: dict[str, Any] = {}
        if self.end is JobState.DONE:
            peer = OnnxRuntime("1.31.1", 0.0262, (0.0262,), 1.31)
            found = {"untuned_latency_s": 0.8, "tuned_latency_s": 0.02, "message": MESSAGE}
            found["footprint"] = Footprint(0.0075, 48_200_000, 0.0123)
            found |= {"onnxruntime": peer, "tuned_interval_s": (0.0199, 0.0214), "noisy": True}
        return job(state=self.end, error=self.error, trials_done=100, **found)


MESSAGE = (
    "1.31 times as fast as ONNX Runtime 1.31.1 on this device (26.2 ms); "
    "20 ms (19.9 ms to 21.4 ms with 95% confidence), 40.0 times faster than untuned (800 ms); "
    "the import could not be compared"
)
# As the first services described one.
WORKER: dict[str, Any] = {
    "id": "w1",
    "state": "ready",
    "device_class": "cafe",
    "device_name": "a board",
    "last_seen_at": 1.0,
    "trials_done": 5,
    "failures": 1,
}


def _artifact() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in ("model.so", "manifest.json"):
            info = tarfile.TarInfo(name)
            info.size = 2
            tar.addfile(info, io.BytesIO(b"{}"))
    return data.getvalue()


@contextmanager
def serving(service: FakeService) -> Iterator[FakeService]:
    """Serve on a free loopback port, which the service's `url` names."""
    with answering(service.answer) as service.url:
        yield service
