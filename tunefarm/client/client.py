"""The Python client of a tunefarm service. Needs no compiler.

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
QUIET_S = 60.0  # the service sends a sign of life more often than this while a job is watched
ATTEMPTS = 5
CHUNK_BYTES = 1 << 20
MAX_PAUSE_S = 60.0

_log = logging.getLogger(__name__)


class ClientError(Exception):
    """The service could not be used; the message is one sentence for people."""


class UnreachableError(ClientError):
    """Nothing answers at the address, or the connection broke and could not be made again."""


class ProblemError(ClientError):
    """The service refused: an RFC 9457 problem."""

    def __init__(self, status: int, kind: str, title: str, detail: str) -> None:
        super().__init__(detail or title)
        self.status, self.kind, self.title, self.detail = status, kind, title, detail


class Client:
    """Talks to the service at `url`. Calls that broke on the way are tried again: all of them may be.

    With `tls`, its authorities alone may vouch for an https service, and its certificate is shown to it.
    Every method raises ProblemError when the service refuses and UnreachableError when it does not answer;
    making a client raises TlsError for files that can't be used.
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
            verify=trust(tls),
            trust_env=remote,  # a proxy can't reach this machine's own loopback
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def upload(self, model: Path, name: str | None = None) -> StoredModel:
        """Stores an ONNX file. The same bytes are the same model. Raises OSError when it can't be read."""

        length = str(model.stat().st_size)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": length}

        def send() -> httpx.Response:
            with model.open("rb") as file:
                chunks = iter(functools.partial(file.read, CHUNK_BYTES), b"")
                query = {"name": name or model.stem}
                return self._http.post("/v1/models", params=query, content=chunks, headers=headers)

        return _parse(StoredModel, _object(self._call(send)))

    def submit(self, request: JobRequest, idempotency_key: str | None = None) -> Job:
        """Starts a job. The same key with the same request is the same job."""
        body = asdict(request)
        # An older service refuses what it doesn't know.
        body = {name: value for name, value in body.items() if name not in _NEWER or value != _NEWER[name]}
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return _parse(Job, self._post("/v1/jobs", body, headers))

    def job(self, job_id: str) -> Job:
        return _parse(Job, self._get(f"/v1/jobs/{job_id}"))

    def jobs(self, page_size: int = 50) -> Iterator[Job]:
        """All jobs, newest first, fetched a page at a time."""
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
        """Deletes a finished job and its artifact; what was measured for it stays."""
        self._call(lambda: self._http.delete(f"/v1/jobs/{quote(job_id, safe='')}"))

    def tasks(self, job_id: str) -> list[Task]:
        return _parse(list[Task], self._get(f"/v1/jobs/{job_id}/tasks").get("items"))

    def workers(self) -> list[Worker]:
        return _parse(list[Worker], self._get("/v1/workers").get("items"))

    def drain(self, worker_id: str) -> Worker:
        """Has a worker finish its lease and take no other, until it is resumed."""
        return self._act(worker_id, "drain")

    def resume(self, worker_id: str) -> Worker:
        """Has a worker that was drained or evicted work again."""
        return self._act(worker_id, "resume")

    def evict(self, worker_id: str) -> Worker:
        """Takes a worker's lease away at once and lets nobody in under its name, until it is resumed."""
        return self._act(worker_id, "evict")

    def calibrate(self, worker_id: str) -> Worker:
        """Has a worker measure its device's profile again as soon as it holds no lease."""
        return self._act(worker_id, "calibrate")

    def device_classes(self) -> list[DeviceClass]:
        """What workers have brought, with the profiles that calibration measured."""
        return _parse(list[DeviceClass], self._get("/v1/device-classes").get("items"))

    def cost_models(self, target: str | None = None) -> list[CostModelReport]:
        """The cost models of every device class that has one, or of one class."""
        query = {} if target is None else {"target": target}
        return _parse(list[CostModelReport], self._get("/v1/cost-models", query).get("items"))

    def best(self, workload: str, target: str = "native") -> Schedule:
        """The best schedule of one workload, given by its structural hash."""
        return _parse(Schedule, self._get("/v1/schedules/best", {"workload": workload, "target": target}))

    def best_of(self, workloads: Sequence[str], target: str = "native") -> dict[str, Schedule]:
        """The best schedules of those workloads that have one."""
        answer = self._post("/v1/schedules:query", {"target": target, "workloads": list(workloads)})
        found = _parse(dict[str, Schedule | None], answer.get("schedules"))
        return {workload: schedule for workload, schedule in found.items() if schedule is not None}

    def export(self, *, target: str | None = None, job_id: str | None = None) -> ScheduleDatabase:
        """The schedules known on a device class, or of one job's workloads; by default the native ones."""
        query = {name: value for name, value in (("target", target), ("job", job_id)) if value is not None}
        return _parse(ScheduleDatabase, self._get("/v1/schedules/export", query))

    def import_(self, database: ScheduleDatabase, target: str = "native") -> ImportResult:
        """Stores schedules; those that are known already change nothing."""
        return _parse(
            ImportResult, self._post(f"/v1/schedules/import?target={quote(target)}", asdict(database))
        )

    def create_token(self, name: str, scopes: Sequence[Scope], expires_after_s: float | None) -> NewToken:
        """A new token with its secret, which is told only now. None: it never expires."""
        body = {"name": name, "scopes": list(scopes), "expires_after_s": expires_after_s}
        # Not repeated: a first one that was made would stay, its secret unknown.
        answer = self._call(lambda: self._http.post("/v1/tokens", json=body), attempts=1)
        return _parse(NewToken, _object(answer))

    def tokens(self) -> list[StoredToken]:
        """Every token ever made, newest first."""
        return _parse(list[StoredToken], self._get("/v1/tokens").get("items"))

    def revoke_token(self, token_id: str) -> StoredToken:
        """Revoking it again changes nothing."""
        path = f"/v1/tokens/{quote(token_id, safe='')}"
        return _parse(StoredToken, _object(self._call(lambda: self._http.delete(path))))

    def events(self, job_id: str, after: str | None = None) -> Iterator[JobEvent]:
        """What happens to a job, from its beginning or after an event, until it is finished.

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
        """Writes a finished job's artifact, a tar file. Raises OSError when `into` can't be written."""

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
        timeout = httpx.Timeout(QUIET_S, connect=5.0)
        with httpx_sse.connect_sse(self._http, "GET", path, headers=headers, timeout=timeout) as source:
            if not source.response.is_success:
                source.response.read()
                raise _problem(source.response)
            if source.response.status_code != httpx.codes.NO_CONTENT:
                for sent in source.iter_sse():
                    yield _event(sent)

    def _get(self, path: str, query: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        return _object(self._call(lambda: self._http.get(path, params=query)))

    def _post(
        self, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return _object(self._call(lambda: self._http.post(path, json=body, headers=headers)))

    def _call(self, send: Callable[[], httpx.Response], attempts: int = ATTEMPTS) -> httpx.Response:
        """Sends until an answer comes that is not "later". What is sent more than once must bear that: it
        reads, or says the same thing again."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(httpx.TransportError)
            | tenacity.retry_if_result(_is_later),
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


def trust(tls: TlsFiles | None) -> ssl.SSLContext | bool:
    """What httpx takes as `verify`. Raises TlsError."""
    if not tls:
        return True
    context = httpx.create_ssl_context() if tls.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.load_into(context)
    return context


def _is_later(response: httpx.Response) -> bool:
    return response.status_code == httpx.codes.TOO_MANY_REQUESTS


def _pause_s(state: tenacity.RetryCallState) -> float:
    """As long as the service asked for, or ever longer after failures."""
    if state.outcome is None or state.outcome.failed:
        return min(0.1 * 2.0 ** (state.attempt_number - 1), 2.0)
    asked = state.outcome.result().headers.get("retry-after", "")
    pause_s = min(float(asked), MAX_PAUSE_S) if asked.isdecimal() else 1.0
    _log.warning("the service takes no more requests for now: trying again in %.0f s", pause_s)
    return pause_s


_BROKEN = tenacity.retry_if_exception_type(httpx.TransportError)


def _last_answer(state: tenacity.RetryCallState) -> Any:
    """The last try's; raises what it raised."""
    assert state.outcome is not None, "there was a try"
    return state.outcome.result()


_NEWER = {"compile_only": False, "priority": 0, "weight": 1.0, "build": "auto"}


def _event(sent: httpx_sse.ServerSentEvent) -> JobEvent:
    try:
        return _parse(JobEvent, {"id": sent.id, "kind": sent.event, "data": sent.json()})
    except ValueError as error:
        raise ClientError(f"the service sent an event that is not understood: {error}") from error


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
