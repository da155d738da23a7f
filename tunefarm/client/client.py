"""The client class: one method for each request that a service answers.

with Client("http://127.0.0.1:8760") as client:
    model = client.upload(Path("resnet18.onnx"))
    job = client.submit(JobRequest(model.sha256, trials=300, shapes={}))
    for event in client.events(job.id):
        print(event.kind, event.data)
"""

from __future__ import annotations

import functools
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
import tenacity
from pydantic import TypeAdapter, ValidationError

from core.access import Scope
from system.network import is_loopback
from system.tls import TlsFiles
from tunefarm.client.values import (
    CostModelReport,
    DeviceClass,
    ImportResult,
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
TOO_MANY_REQUESTS = httpx.codes.TOO_MANY_REQUESTS
MAX_PAUSE_S = 60.0

# Fields of a job that older services don't know, with the values that mean what those do.
_NEWER_FIELDS = {"compile_only": False, "priority": 0, "weight": 1.0, "build": "auto", "exact": False}

_log = logging.getLogger(__name__)


class ClientError(Exception):
    """The service could not be used; the message is one sentence for the user."""


class UnreachableError(ClientError):
    """No service answers at the address, or the connection broke and could not be made again."""


class ProblemError(ClientError):
    """The service refused a request with an RFC 9457 problem."""

    def __init__(self, status: int, kind: str, title: str, detail: str) -> None:
        super().__init__(detail or title)
        self.status, self.kind, self.title, self.detail = status, kind, title, detail


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
        """Store an ONNX file. The same bytes are the same model. Raises OSError when it can't be read."""
        length = str(model.stat().st_size)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": length}

        def send() -> httpx.Response:
            with model.open("rb") as file:
                chunks = iter(functools.partial(file.read, CHUNK_BYTES), b"")
                query = {"name": name or model.stem}
                return self._http.post("/v1/models", params=query, content=chunks, headers=headers)

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

    def best(self, workload: str, target: str = "native") -> Schedule:
        """Return the best schedule of one workload, given by its structural hash."""
        return _parse(Schedule, self._get("/v1/schedules/best", {"workload": workload, "target": target}))

    def best_of(self, workloads: Sequence[str], target: str = "native") -> dict[str, Schedule]:
        """Return the best schedules of those workloads that have one, by workload."""
        answer = self._post("/v1/schedules:query", {"target": target, "workloads": list(workloads)})
        found = _parse(dict[str, Schedule | None], answer.get("schedules"))
        return {workload: schedule for workload, schedule in found.items() if schedule is not None}

    def export(self, *, target: str | None = None, job_id: str | None = None) -> ScheduleDatabase:
        """Return the schedules of a device class, by default the native one, or of one job's workloads."""
        query = {name: value for name, value in (("target", target), ("job", job_id)) if value is not None}
        return _parse(ScheduleDatabase, self._get("/v1/schedules/export", query))

    def import_(self, database: ScheduleDatabase, target: str = "native") -> ImportResult:
        """Store schedules; those that are known already change nothing."""
        return _parse(
            ImportResult, self._post(f"/v1/schedules/import?target={quote(target)}", asdict(database))
        )

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
            else:
                if self.job(job_id).state.finished:
                    return
            self._sleep(min(0.2 * 2**failures, 5.0))

    def download(self, job_id: str, into: Path) -> None:
        """Write a finished job's artifact, a tar file. Raises OSError when `into` can't be written."""

        def fetch() -> httpx.Response:
            with self._http.stream("GET", f"/v1/jobs/{job_id}/artifact") as response:
                if not response.is_success:
                    response.read()
                    return response
                with into.open("wb") as file:
                    for chunk in response.iter_bytes(CHUNK_BYTES):
                        file.write(chunk)
                return response

        self._call(fetch)

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
                    try:
                        data = sent.json()
                    except ValueError as error:
                        raise ClientError(
                            f"the service sent an event that is not understood: {error}"
                        ) from error
                    yield _parse(JobEvent, {"id": sent.id, "kind": sent.event, "data": data})

    def _get(self, path: str, query: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        return _object(self._call(lambda: self._http.get(path, params=query)))

    def _post(
        self, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return _object(self._call(lambda: self._http.post(path, json=body, headers=headers)))

    def _call(self, send: Callable[[], httpx.Response], attempts: int = ATTEMPTS) -> httpx.Response:
        """Send a request until it is answered with anything but 429. `send` must be idempotent unless it has
        one attempt."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(httpx.TransportError)
            | tenacity.retry_if_result(lambda answer: answer.status_code == TOO_MANY_REQUESTS),
            stop=tenacity.stop_after_attempt(attempts),
            wait=_pause_s,
            sleep=self._sleep,
            retry_error_callback=_last_answer,
        )
        try:
            response: httpx.Response = retrying(send)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if not response.is_success:
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
    asked = state.outcome.result().headers.get("retry-after", "")
    pause_s = min(float(asked), MAX_PAUSE_S) if asked.isdecimal() else 1.0
    _log.warning("the service takes no more requests for now: trying again in %.0f s", pause_s)
    return pause_s


def _last_answer(state: tenacity.RetryCallState) -> Any:
    """Return the answer to the last attempt, or raise what that raised."""
    assert state.outcome is not None, "there was an attempt"
    return state.outcome.result()


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
    return ProblemError(response.status_code, str(body.get("type", "about:blank")), title, detail)


def _parse(kind: type[Value], answer: object) -> Value:
    try:
        value: Value = TypeAdapter(kind).validate_python(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ClientError(f"the service's answer is not understood ({where}: {first['msg']})") from error
    return value
