"""The client class: one method for each request that a service answers.

with Client("http://127.0.0.1:8760") as client:
    model = client.upload(Path("resnet18.onnx"))
    job = client.submit(JobRequest(model.sha256, trials=300, shapes={}))
    for event in client.events(job.id):
        print(event.kind, event.data)
"""

from __future__ import annotations

import logging
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import httpx_sse
import msgspec
import tenacity

from core.access import Scope
from system.network import is_loopback
from system.tls import TlsFiles
from tunefarm.client.model_files import ModelFiles
from tunefarm.client.values import (
    BestSchedules,
    CostModelReport,
    DeviceClass,
    ImportResult,
    ImportsDeleted,
    Job,
    JobEvent,
    JobRequest,
    NewToken,
    Schedule,
    ScheduleDatabase,
    StoredModel,
    StoredToken,
    Task,
    Worker,
)

Value = TypeVar("Value")
TIMEOUT = httpx.Timeout(30.0, connect=5.0)
EVENT_TIMEOUT_S = 60.0  # the service sends something more often than this while a job is watched
ATTEMPTS = 5
CHUNK_BYTES = 1 << 20
MAX_PAUSE_S = 60.0

# Fields of a job that older services don't know, with the values that mean what those do.
_NEWER_FIELDS = {
    "compile_only": False,
    "priority": 0,
    "weight": 1.0,
    "build": "auto",
    "exact": False,
    "tf32": False,
    "latency_s": None,
    "min_gain": None,
    "batch": None,
    "objective": None,
    "model_weight": 1.0,
    "others": (),
}

_log = logging.getLogger(__name__)


class ClientError(Exception):
    """The service could not be used; the message is one sentence for the user."""


class UnreachableError(ClientError):
    """No service answers at the address, or the connection broke and could not be made again."""


class ProblemError(ClientError):
    """The service refused a request with an RFC 9457 problem. It may be sent again after `pause_s`."""

    def __init__(self, status: int, kind: str, title: str, detail: str, pause_s: float | None = None) -> None:
        super().__init__(detail or title)
        self.status, self.kind, self.title, self.detail = status, kind, title, detail
        self.pause_s = pause_s


class Client:
    """Talks to the service at `url`. Requests that a broken connection ended are sent again.

    With `tls`, an https service must have a certificate of its authorities, and is shown its certificate.
    Every method raises ProblemError when the service refuses and UnreachableError when it does not answer.
    The constructor raises ValueError for an address that isn't a URL, and TlsError.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tls: TlsFiles | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"a service's address starts with http:// or https://, not {url!r}")
        self.url = url.rstrip("/")
        self._sleep = sleep
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        remote = not is_loopback(httpx.URL(self.url).host)
        if token and remote and self.url.startswith("http://"):
            _log.warning("the token crosses the network in clear to %s: use https:// if it can", self.url)
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=TIMEOUT,
            transport=transport,
            verify=tls_verification(tls),
            trust_env=remote,  # a proxy can't reach this machine's loopback
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def upload(self, model: Path, name: str | None = None) -> StoredModel:
        """Store a model's file; an ONNX file goes with the files of its weights. The same bytes are the same
        model. Raises OSError when it can't be read."""
        try:
            files = ModelFiles.of(model)
        except ValueError as error:
            raise ClientError(str(error)) from error
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(files.size)}
        query = {"name": name or model.stem}

        def send() -> httpx.Response:
            return self._http.post("/v1/models", params=query, content=files.chunks(), headers=headers)

        return _parse(StoredModel, _object(self._call(send)))

    def submit(self, request: JobRequest, idempotency_key: str | None = None) -> Job:
        """Start a job. The same key with the same request is the same job."""
        body = asdict(request)
        body = {
            name: value
            for name, value in body.items()
            if name not in _NEWER_FIELDS or value != _NEWER_FIELDS[name]
        }
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return _parse(Job, self._post("/v1/jobs", body, headers))

    def job(self, job_id: str) -> Job:
        return _parse(Job, self._get(f"/v1/jobs/{job_id}"))

    def jobs(self, page_size: int = 50) -> Iterator[Job]:
        """Return all jobs, newest first, fetched a page at a time."""
        query: dict[str, str | int] = {"limit": page_size}
        while True:
            page = self._get("/v1/jobs", query)
            yield from _parse(list[Job], page.get("items"))
            if page.get("next") is None:
                return
            query["before"] = page["next"]

    def cancel(self, job_id: str) -> Job:
        return _parse(Job, self._post(f"/v1/jobs/{job_id}:cancel"))

    def delete(self, job_id: str) -> None:
        """Delete a finished job and its artifact; what was measured for it stays."""
        self._call(lambda: self._http.delete(f"/v1/jobs/{quote(job_id, safe='')}"))

    def tasks(self, job_id: str) -> list[Task]:
        return _parse(list[Task], self._get(f"/v1/jobs/{job_id}/tasks").get("items"))

    def workload(self, workload: str) -> str:
        """Return the module of a workload, as TVM's JSON."""
        return str(self._get(f"/v1/workloads/{quote(workload, safe='')}").get("module_json"))

    def version(self) -> str:
        """Return the service's version."""
        return str(self._get("/openapi.json").get("info", {}).get("version"))

    def workers(self) -> list[Worker]:
        return _parse(list[Worker], self._get("/v1/workers").get("items"))

    def drain(self, worker_id: str) -> Worker:
        """Have a worker finish its lease and take no other, until it is resumed."""
        return self._act(worker_id, "drain")

    def resume(self, worker_id: str) -> Worker:
        """Have a worker that was drained or evicted work again."""
        return self._act(worker_id, "resume")

    def evict(self, worker_id: str) -> Worker:
        """Take a worker's lease away at once and let nobody in under its name, until it is resumed."""
        return self._act(worker_id, "evict")

    def update(self, worker_id: str) -> Worker:
        """Have a worker finish its lease, then be updated to the service's version."""
        return self._act(worker_id, "update")

    def calibrate(self, worker_id: str) -> Worker:
        """Have a worker measure its device's profile again as soon as it holds no lease."""
        return self._act(worker_id, "calibrate")

    def device_classes(self) -> list[DeviceClass]:
        """Return the device classes of all workers, with the profiles that calibration measured."""
        return _parse(list[DeviceClass], self._get("/v1/device-classes").get("items"))

    def cost_models(self, target: str | None = None) -> list[CostModelReport]:
        """Return reports on the cost models of every device class that has one, or of one class."""
        query = {} if target is None else {"target": target}
        return _parse(list[CostModelReport], self._get("/v1/cost-models", query).get("items"))

    def best(self, workload: str, target: str = "native", *, nearest: bool = False) -> Schedule:
        """Return the best schedule of one workload, given by its structural hash.

        If nothing was measured of it, that is an imported one, as its `source` says; with `nearest`, if there
        is none either, one of the nearest device class whose code runs on the target, as `in_place_of` says.
        """
        query: dict[str, str | int] = {"workload": workload, "target": target, **_asking(nearest)}
        return _parse(Schedule, self._get("/v1/schedules/best", query))

    def best_of(
        self, workloads: Sequence[str], target: str = "native", *, nearest: bool = False
    ) -> dict[str, Schedule]:
        """Return the best schedules of those workloads that have one, by workload, in one call."""
        found = self.best_unless(None, workloads, target, nearest=nearest)
        assert found is not None, "nothing was there before"
        return found.schedules

    def best_unless(
        self, etag: str | None, workloads: Sequence[str], target: str = "native", *, nearest: bool = False
    ) -> BestSchedules | None:
        """Return what `best_of` does with its ETag; None if that is `etag`, so nothing has changed since."""
        body = {"target": target, "workloads": list(workloads)} | _asking(nearest)
        headers = {} if etag is None else {"If-None-Match": etag}
        answer = self._call(lambda: self._http.post("/v1/schedules:query", json=body, headers=headers))
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            return None
        found = _parse(dict[str, Schedule | None], _object(answer).get("schedules"))
        schedules = {workload: schedule for workload, schedule in found.items() if schedule is not None}
        return BestSchedules(schedules, answer.headers.get("etag"))

    def download_best(
        self,
        model: str,
        into: Path,
        target: str = "native",
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        exact: bool = False,
        tf32: bool = False,
        etag: str | None = None,
    ) -> str | None:
        """Write the fastest compiled model, a tar file, of the model with this SHA-256, and return its ETag.

        If that is `etag`, nothing is written and the answer is None. `shapes` are needed where the model was
        tuned for several; with `exact`, the model has no variants that round differently; only with `tf32`
        may it compute in TF32. Raises OSError when `into` can't be written.
        """
        query: dict[str, Any] = {"model": model, "target": target}
        query["shape"] = [f"{name}={','.join(map(str, shape))}" for name, shape in (shapes or {}).items()]
        query |= {name: "true" for name, asked in (("exact", exact), ("tf32", tf32)) if asked}
        headers = {} if etag is None else {"If-None-Match": etag}
        answer = self._fetch("/v1/artifacts/best", into, query, headers)
        return None if answer.status_code == httpx.codes.NOT_MODIFIED else answer.headers.get("etag", "")

    def export(self, *, target: str | None = None, job_id: str | None = None) -> ScheduleDatabase:
        """Return the measured schedules of a device class, by default the native one, or of one job's
        workloads."""
        query = {name: value for name, value in (("target", target), ("job", job_id)) if value is not None}
        return _parse(ScheduleDatabase, self._get("/v1/schedules/export", query))

    def import_(self, database: ScheduleDatabase, target: str = "native") -> ImportResult:
        """Store schedules, which jobs will measure; those that are known already change nothing."""
        return _parse(
            ImportResult, self._post(f"/v1/schedules/import?target={quote(target)}", asdict(database))
        )

    def delete_imported(self, target: str = "native", workload: str | None = None) -> ImportsDeleted:
        """Delete the imported schedules of a device class that it hasn't measured, or only a workload's."""
        query = {"target": target} | ({} if workload is None else {"workload": workload})
        answer = self._call(lambda: self._http.delete("/v1/schedules/imported", params=query))
        return _parse(ImportsDeleted, _object(answer))

    def create_token(self, name: str, scopes: Sequence[Scope], expires_after_s: float | None) -> NewToken:
        """Create a token. Only this answer holds its secret. With None it never expires."""
        body = {"name": name, "scopes": list(scopes), "expires_after_s": expires_after_s}
        # Not sent again: a token of the first attempt would stay, its secret unknown.
        answer = self._call(lambda: self._http.post("/v1/tokens", json=body), attempts=1)
        return _parse(NewToken, _object(answer))

    def tokens(self) -> list[StoredToken]:
        """Return every token ever created, newest first."""
        return _parse(list[StoredToken], self._get("/v1/tokens").get("items"))

    def revoke_token(self, token_id: str) -> StoredToken:
        """Revoke a token. Revoking it again changes nothing."""
        path = f"/v1/tokens/{quote(token_id, safe='')}"
        return _parse(StoredToken, _object(self._call(lambda: self._http.delete(path))))

    def report(self, job_id: str) -> str:
        """Return an HTML file with a job's charts and programs, which needs no service and no network."""
        return self._call(lambda: self._http.get(f"/v1/jobs/{quote(job_id, safe='')}/report")).text

    def events(self, job_id: str, after: str | None = None) -> Iterator[JobEvent]:
        """Yield a job's events until it is finished, from its first or those after the event `after`.

        A connection that breaks is made again, and no event is lost or seen twice.
        """
        failures = 0
        while True:
            try:
                for event in self._stream(job_id, after):
                    after, failures = event.id, 0
                    yield event
            except httpx.TransportError as error:
                failures += 1
                if failures == ATTEMPTS:
                    raise self._unreachable(error) from error
                pause_s = min(0.2 * 2**failures, 5.0)
            except ProblemError as problem:
                failures += 1
                if problem.pause_s is None or failures == ATTEMPTS:
                    raise
                pause_s = problem.pause_s
            else:
                if self.job(job_id).state.finished:
                    return
                pause_s = 0.2
            self._sleep(pause_s)

    def download(self, job_id: str, into: Path) -> None:
        """Write a finished job's artifact, a tar file. Raises OSError when `into` can't be written."""
        self._fetch(f"/v1/jobs/{job_id}/artifact", into)

    def _act(self, worker_id: str, action: str) -> Worker:
        return _parse(Worker, self._post(f"/v1/workers/{quote(worker_id, safe='')}:{action}"))

    def _stream(self, job_id: str, after: str | None) -> Iterator[JobEvent]:
        headers = {"Last-Event-ID": after} if after is not None else {}
        path = f"/v1/jobs/{job_id}/events"
        timeout = httpx.Timeout(EVENT_TIMEOUT_S, connect=5.0)
        with httpx_sse.connect_sse(self._http, "GET", path, headers=headers, timeout=timeout) as source:
            if not source.response.is_success:
                source.response.read()
                raise _problem(source.response)
            if source.response.status_code != httpx.codes.NO_CONTENT:
                for sent in source.iter_sse():
                    if not sent.data:
                        continue  # a ping, which keeps the connection open
                    try:
                        data = sent.json()
                    except ValueError as error:
                        raise ClientError(
                            f"the service sent an event that is not understood: {error}"
                        ) from error
                    yield _parse(JobEvent, {"id": sent.id, "kind": sent.event, "data": data})

    def _fetch(
        self,
        path: str,
        into: Path,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Write the body of a successful answer to a file; return the answer without it."""

        def fetch() -> httpx.Response:
            with self._http.stream("GET", path, params=query, headers=headers) as response:
                if not response.is_success:
                    response.read()
                    return response
                with into.open("wb") as file:
                    for chunk in response.iter_bytes(CHUNK_BYTES):
                        file.write(chunk)
                return response

        return self._call(fetch)

    def _get(self, path: str, query: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        return _object(self._call(lambda: self._http.get(path, params=query)))

    def _post(
        self, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return _object(self._call(lambda: self._http.post(path, json=body, headers=headers)))

    def _call(self, send: Callable[[], httpx.Response], attempts: int = ATTEMPTS) -> httpx.Response:
        """Send a request until it is answered with anything but 429, or 503 that says when to try again.
        `send` must be idempotent unless it has one attempt."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(httpx.TransportError)
            | tenacity.retry_if_result(lambda answer: _asked_pause_s(answer) is not None),
            stop=tenacity.stop_after_attempt(attempts),
            wait=_pause_s,
            sleep=self._sleep,
            retry_error_callback=_last_answer,
        )
        try:
            response: httpx.Response = retrying(send)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if not response.is_success and response.status_code != httpx.codes.NOT_MODIFIED:
            raise _problem(response)
        return response

    def _unreachable(self, error: httpx.TransportError) -> UnreachableError:
        cause = str(error) or type(error).__name__
        return UnreachableError(f"no tunefarm service answers at {self.url} ({cause})")


def tls_verification(tls: TlsFiles | None) -> ssl.SSLContext | bool:
    """Return httpx's argument `verify`. Raises TlsError."""
    if not tls:
        return True
    context = httpx.create_ssl_context() if tls.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.load_into(context)
    return context


def _pause_s(state: tenacity.RetryCallState) -> float:
    """Return the pause that the service asked for, or a longer one after each failure."""
    if state.outcome is None or state.outcome.failed:
        return min(0.1 * 2.0 ** (state.attempt_number - 1), 2.0)
    pause_s = _asked_pause_s(state.outcome.result())
    assert pause_s is not None, "other answers are final"
    _log.warning("the service takes no more requests for now: trying again in %.0f s", pause_s)
    return pause_s


def _asked_pause_s(answer: httpx.Response) -> float | None:
    """Return the seconds after which the service wants the request again, None where it doesn't say so."""
    asked = answer.headers.get("retry-after", "")
    if answer.status_code not in (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE):
        return None
    if asked.isdecimal():
        return min(float(asked), MAX_PAUSE_S)
    return 1.0 if answer.status_code == httpx.codes.TOO_MANY_REQUESTS else None


def _last_answer(state: tenacity.RetryCallState) -> Any:
    """Return the answer to the last attempt, or raise what that raised."""
    assert state.outcome is not None, "there was an attempt"
    return state.outcome.result()


def _asking(nearest: bool) -> dict[str, bool]:
    # Left out unless it is wanted: older services don't know it.
    return {"nearest": True} if nearest else {}


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ClientError(f"{response.request.url} answered with something that is no tunefarm service's")
    return answer


def _problem(response: httpx.Response) -> ProblemError:
    try:
        body = response.json()
        title, detail = str(body["title"]), str(body.get("detail", ""))
    except (ValueError, LookupError, TypeError):
        return ProblemError(
            response.status_code, "about:blank", response.reason_phrase,
            f"{response.request.url} answered {response.status_code} {response.reason_phrase}",
        )  # fmt: skip
    kind = str(body.get("type", "about:blank"))
    return ProblemError(response.status_code, kind, title, detail, _asked_pause_s(response))


def _parse(kind: type[Value], answer: object) -> Value:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise ClientError(f"the service's answer is not understood: {error}") from error
