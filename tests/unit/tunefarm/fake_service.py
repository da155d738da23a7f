"""A service over real HTTP whose only job goes from queued to an end that the test chose."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from core.job import JobState
from tests.unit.tunefarm.samples import cost_model, job, task
from tunefarm.client.values import Schedule


@dataclass
class FakeService:
    """`looks` counts how often the job was looked at: it is done the third time."""

    end: JobState = JobState.DONE
    error: str | None = None
    refusal: dict[str, Any] | None = None
    url: str = ""
    looks: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    workers: list[dict[str, Any]] = field(default_factory=lambda: [dict(WORKER)])
    device_classes: list[dict[str, Any]] = field(default_factory=list)
    acted: list[str] = field(default_factory=list)
    best: Schedule = field(
        default_factory=lambda: Schedule("abc", "cafe", "[[],[]]", 1e-3, (1e-3,), "{}", "import")
    )
    module_json: str = "{}"
    members: tuple[str, ...] = ()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        if method == "POST" and self.refusal is not None:
            return self.refusal["status"], "application/problem+json", json.dumps(self.refusal).encode()
        if method == "DELETE":
            self.acted.append(path)
            if path.startswith("/v1/schedules/imported"):
                return 200, "application/json", b'{"device_class": "cafe", "deleted": 5}'
            return 204, "", b""
        if path.endswith("/events"):
            return 200, "text/event-stream", b"id: 1\nevent: state\ndata: {}\n\n"
        if path.endswith("/artifact"):
            return 200, "application/x-tar", _artifact()
        return 200, "application/json", json.dumps(self._value(method, path, body)).encode()

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
            return self.workers[0]
        if (method, path) == ("POST", "/v1/jobs"):
            self.requests.append(json.loads(body))
            return asdict(job(state=JobState.QUEUED, members=self.members))
        if path.startswith("/v1/jobs?"):
            return {"items": [asdict(job())], "next": None}
        return asdict(self._job())

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
            found = {"untuned_latency_s": 0.8, "tuned_latency_s": 0.02, "message": MESSAGE}
        return job(state=self.end, error=self.error, trials_done=100, **found)


MESSAGE = "20 ms, 40.0 times faster than untuned (800 ms); the import could not be compared"
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up early is no error, and must not write into the next test's stderr."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(service: FakeService) -> Iterator[FakeService]:
    """Serves on a free loopback port, given as the service's `url`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._respond("GET")

        def do_POST(self) -> None:
            self._respond("POST")

        def do_DELETE(self) -> None:
            self._respond("DELETE")

        def _respond(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, kind, content = service.answer(method, self.path, body)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args: object) -> None:
            """Says nothing."""

    with _Server(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        service.url = f"http://127.0.0.1:{http.server_port}"
        try:
            yield service
        finally:
            http.shutdown()
            thread.join()
