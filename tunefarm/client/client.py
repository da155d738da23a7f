"""The client class: one method for each request that a service answers.

with Client("http://127.0.0.1:8760") as client:
    model = client.upload(Path("resnet18.onnx"))
    job = client.submit(JobRequest(model.sha256, trials=300, shapes={}))
    for event in client.events(job.id):
        print(event.kind, event.data)
"""

from __future__ import annotations

import contextlib
import json
import logging
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode
from urllib.request import getproxies, proxy_bypass

import msgspec
import tenacity
import urllib3
from sseclient import SSEClient
from urllib3.exceptions import HTTPError

from core.job import JobState, Quantize
from core.quantization import Quantization
from core.tokens import Scope
from core.webhook import WebhookEvent
from system.ip_addresses import is_loopback
from system.new_file import new_file
from system.tls import TlsFiles
from tunefarm.client.model_files import FileCutShort, ModelFiles, chunks_of
from tunefarm.client.values import (
    BestSchedules,
    CostModelReport,
    DeviceClass,
    ImportResult,
    ImportsDeleted,
    Inference,
    Job,
    JobEvent,
    JobRequest,
    NewToken,
    NewWebhook,
    Release,
    Schedule,
    ScheduleDatabase,
    StoredDataset,
    StoredModel,
    StoredToken,
    StoredWebhook,
    Task,
    WebhookDelivery,
    Worker,
)

Value = TypeVar("Value")
HttpResponse = urllib3.BaseHTTPResponse
CONNECT_TIMEOUT_S = 5.0
TIMEOUT = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=30.0)
# While a job is watched, the service sends data at shorter intervals than this.
EVENT_TIMEOUT = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=60.0)
CONNECTIONS = 8  # connections that are kept open, for the threads that share a client
ATTEMPTS = 5
CHUNK_BYTES = 1 << 20
SHOWN_IDS = 3
MAX_PAUSE_S = 60.0

_log = logging.getLogger(__name__)


class ClientError(Exception):
    """A call to the service failed. The message is one sentence for the user."""


class UnreachableError(ClientError):
    """No service answers at the address, or the connection broke and reconnecting failed."""


class ProblemError(ClientError):
    """The service refused a request with an RFC 9457 problem. The request may be repeated after `pause_s`
    seconds."""

    def __init__(self, status: int, kind: str, title: str, detail: str, pause_s: float | None = None) -> None:
        super().__init__(detail or title)
        self.status, self.kind, self.title, self.detail = status, kind, title, detail
        self.pause_s = pause_s


class Client:
    """A client of the service at `url`. Requests are repeated if their connection breaks.

    `tls` has the authorities for an https service's certificate, and the client's certificate. Every method
    raises ProblemError if the service refuses, and UnreachableError if it doesn't answer. The constructor
    raises ValueError for an address that isn't a URL, and TlsError.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tls: TlsFiles | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"a service's address starts with http:// or https://, not {url!r}")
        self.url = url.rstrip("/")
        self._sleep = sleep
        address = urllib3.util.parse_url(self.url)
        host = (address.host or "").strip("[]")
        if token and not is_loopback(host) and self.url.startswith("http://"):
            _log.warning("the token is sent in clear to %s: use https:// if the service has TLS", self.url)
        self._headers = urllib3.make_headers(accept_encoding="gzip", user_agent="tunefarm")
        self._headers |= {"Authorization": f"Bearer {token}"} if token else {}
        self._http = _pool(address.scheme or "", host, tls_context(tls))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.clear()

    def upload(self, model: Path, name: str | None = None) -> StoredModel:
        """Upload a model's file, for ONNX with the files of its weights. Equal bytes are the same model.
        Raises OSError if it can't be read."""
        try:
            files = ModelFiles.of(model)
        except ValueError as error:
            raise ClientError(str(error)) from error
        path = _path("/v1/models", {"name": name or model.stem})
        return _parse(StoredModel, self._upload(path, files.size, files.chunks))

    def upload_dataset(self, file: Path) -> StoredDataset:
        """Upload an .npz file with inputs of a model. Equal files become one dataset.

        Raises OSError if the file can't be read.
        """
        path, size = _path("/v1/datasets", {"name": file.stem}), file.stat().st_size
        return _parse(StoredDataset, self._upload(path, size, lambda: chunks_of(file, size)))

    def submit(self, request: JobRequest, idempotency_key: str | None = None) -> Job:
        """Start a job. The same idempotency key with the same request returns the same job."""
        # Defaults are left out: an older service refuses a field that it doesn't know.
        default = asdict(JobRequest(request.model, request.trials))
        required = ("model", "trials")
        body = {
            name: value
            for name, value in asdict(request).items()
            if name in required or value != default[name]
        }
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return _parse(Job, self._post("/v1/jobs", body, headers))

    def job(self, job_id: str) -> Job:
        return _parse(Job, self._get(f"/v1/jobs/{job_id}"))

    def job_id(self, start: str) -> str:
        """Return the id of the only job whose id begins with `start`, or `start` if no id begins with it.

        Raises ClientError if several ids begin with it.
        """
        page = self._get(_path("/v1/jobs", {"starts_with": start, "limit": SHOWN_IDS}))
        ids = [job.id for job in _parse(list[Job], page.get("items")) if job.id.startswith(start)]
        if len(ids) > 1 and start not in ids:
            listed = ", ".join(ids) + (", ..." if page.get("next") is not None else "")
            raise ClientError(f"several jobs start with {start!r} ({listed}): give more of the id")
        return ids[0] if len(ids) == 1 else start

    def jobs(
        self, page_size: int = 50, *, state: JobState | None = None, words: str = "", tag: str | None = None
    ) -> Iterator[Job]:
        """Return jobs, newest first, fetched a page at a time.

        Leave out jobs in another state, without this tag, or without one of the words in the name of their
        model, their tags or notes.
        """
        query: dict[str, str | int] = {"limit": page_size}
        query |= {} if state is None else {"state": state}
        query |= ({"words": words} if words else {}) | ({} if tag is None else {"tag": tag})
        while True:
            page = self._get(_path("/v1/jobs", query))
            yield from _parse(list[Job], page.get("items"))
            if page.get("next") is None:
                return
            query["before"] = page["next"]

    def annotate(self, job_id: str, *, tags: Sequence[str] | None = None, notes: str | None = None) -> Job:
        """Change a job's tags and notes; None leaves them unchanged."""
        body = {"tags": None if tags is None else list(tags), "notes": notes}
        path = f"/v1/jobs/{quote(job_id, safe='')}"
        return _parse(Job, self._object(self._call(lambda: self._send("PATCH", path, json=body))))

    def cancel(self, job_id: str) -> Job:
        return _parse(Job, self._post(f"/v1/jobs/{job_id}:cancel"))

    def delete(self, job_id: str) -> None:
        """Delete a finished job and its artifact. Its measurements stay."""
        self._call(lambda: self._send("DELETE", f"/v1/jobs/{quote(job_id, safe='')}"))

    def tasks(self, job_id: str) -> list[Task]:
        return _parse(list[Task], self._get(f"/v1/jobs/{job_id}/tasks").get("items"))

    def quantization(self, job_id: str) -> Quantization:
        """Return the quantization of a job's model, layer by layer."""
        return _parse(Quantization, self._get(f"/v1/jobs/{quote(job_id, safe='')}/quantization"))

    def download_quantized(self, job_id: str, into: Path) -> None:
        """Write the quantized model of a job to an ONNX file. Raises OSError if it can't be written."""
        self._fetch_unless(None, f"/v1/jobs/{quote(job_id, safe='')}/quantization/model", into)

    def infer(self, job_id: str, inputs: str, target: str | None = None) -> Job:
        """Start a job that runs a job's artifact with the dataset of this SHA-256.

        It runs on a device of the class `target`, by default the artifact's own class.
        """
        body = {"inputs": inputs} | ({} if target is None else {"target": target})
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return _parse(Job, self._post(f"/v1/jobs/{quote(job_id, safe='')}/inferences", body, headers))

    def inference(self, job_id: str) -> Inference:
        """Return the result of an inference job."""
        return _parse(Inference, self._get(f"/v1/jobs/{quote(job_id, safe='')}/inference"))

    def download_outputs(self, job_id: str, into: Path) -> None:
        """Write the outputs of an inference job to an .npz file. Raises OSError if it can't be written."""
        self._fetch_unless(None, f"/v1/jobs/{quote(job_id, safe='')}/outputs", into)

    def workload(self, workload: str) -> str:
        """Return the module of a workload, as TVM's JSON."""
        return str(self._get(f"/v1/workloads/{quote(workload, safe='')}").get("module_json"))

    def workload_hash(self, start: str) -> str:
        """Return the hash of the only workload whose hash begins with `start`."""
        return str(self._get(f"/v1/workloads/{quote(start, safe='')}").get("hash"))

    def check(self, timeout_s: float) -> None:
        """Check within `timeout_s` seconds, without another attempt, that a service accepts the token."""
        timeout = urllib3.Timeout(total=timeout_s)
        self._object(self._call(lambda: self._send("GET", "/v1/session", timeout=timeout), attempts=1))

    def version(self) -> str:
        """Return the service's version."""
        return str(self._get("/openapi.json").get("info", {}).get("version"))

    def workers(self) -> list[Worker]:
        return _parse(list[Worker], self._get("/v1/workers").get("items"))

    def drain(self, worker_id: str) -> Worker:
        """Let a worker finish its lease and take no other, until it is resumed."""
        return self._act(worker_id, "drain")

    def resume(self, worker_id: str) -> Worker:
        """Let a drained or evicted worker work again."""
        return self._act(worker_id, "resume")

    def evict(self, worker_id: str) -> Worker:
        """Revoke a worker's lease at once, and reject its name until it is resumed."""
        return self._act(worker_id, "evict")

    def update(self, worker_id: str) -> Worker:
        """Let a worker finish its lease, then install the service's version."""
        return self._act(worker_id, "update")

    def calibrate(self, worker_id: str) -> Worker:
        """Let a worker measure its device's profile again once it holds no lease."""
        return self._act(worker_id, "calibrate")

    def reserve(self, worker_id: str, minutes: float, holder: str | None = None) -> Worker:
        """Let a worker measure only one token's jobs for some minutes; by default, the jobs of this client's
        token. `holder` is the token's id or name."""
        path = f"/v1/workers/{quote(worker_id, safe='')}:reserve"
        return _parse(Worker, self._post(path, {"minutes": minutes, "holder": holder}))

    def unreserve(self, worker_id: str) -> Worker:
        """End a worker's reservation, if it has one."""
        return self._act(worker_id, "unreserve")

    def device_classes(self) -> list[DeviceClass]:
        """Return the device classes of all workers, with the profiles that calibration measured."""
        return _parse(list[DeviceClass], self._get("/v1/device-classes").get("items"))

    def cost_models(self, target: str | None = None) -> list[CostModelReport]:
        """Return reports on the cost models of every device class that has one, or of one class."""
        query = {} if target is None else {"target": target}
        return _parse(list[CostModelReport], self._get(_path("/v1/cost-models", query)).get("items"))

    def best(self, workload: str, target: str = "native", *, nearest: bool = False) -> Schedule:
        """Return the best schedule of one workload, given by its structural hash.

        If none was measured, an imported one is returned, and its `source` says so. With `nearest`, the
        nearest device class whose code runs on the target may stand in, as `in_place_of` says.
        """
        query = {"workload": workload, "target": target} | ({"nearest": "true"} if nearest else {})
        return _parse(Schedule, self._get(_path("/v1/schedules/best", query)))

    def best_of(
        self, workloads: Sequence[str], target: str = "native", *, nearest: bool = False
    ) -> dict[str, Schedule]:
        """Return the best schedules of workloads by workload, in one call. Workloads without a schedule are
        left out."""
        found = self.best_unless(None, workloads, target, nearest=nearest)
        assert found is not None, "nothing was there before"
        return found.schedules

    def best_unless(
        self, etag: str | None, workloads: Sequence[str], target: str = "native", *, nearest: bool = False
    ) -> BestSchedules | None:
        """Return the result of `best_of` with its ETag; None if the ETag is still `etag`."""
        # Left out unless it is set, because older services don't know it.
        body = {"target": target, "workloads": list(workloads)} | ({"nearest": True} if nearest else {})
        headers = {} if etag is None else {"If-None-Match": etag}
        answer = self._call(lambda: self._send("POST", "/v1/schedules:query", headers, json=body))
        if answer.status == HTTPStatus.NOT_MODIFIED:
            return None
        found = _parse(dict[str, Schedule | None], self._object(answer).get("schedules"))
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
        quantize: Quantize = Quantize.NONE,
        bundle: bool = False,
        etag: str | None = None,
    ) -> str | None:
        """Write the fastest compiled model, a tar file, of the model with this SHA-256, and return its ETag.

        If that is `etag`, nothing is written and the answer is None. `shapes` are needed if the model was
        tuned for several. With `exact`, the model has no variants that round differently. Only with `tf32`
        may it compute in TF32. `quantize` is the type that its job quantized the model to. With `bundle`, the
        tar file also has the files for C and C++ programs. Raises OSError when `into` can't be written.
        """
        query: dict[str, Any] = {"model": model, "target": target}
        query["shape"] = [f"{name}={','.join(map(str, shape))}" for name, shape in (shapes or {}).items()]
        flags = {"exact": exact, "tf32": tf32, "bundle": bundle}
        query |= {name: "true" for name, asked in flags.items() if asked}
        query |= {} if quantize is Quantize.NONE else {"quantize": quantize}
        return self._fetch_unless(etag, _path("/v1/artifacts/best", query), into)

    def export(self, *, target: str | None = None, job_id: str | None = None) -> ScheduleDatabase:
        """Return the measured schedules of a device class, by default the native one, or of one job's
        workloads."""
        query = {name: value for name, value in (("target", target), ("job", job_id)) if value is not None}
        return _parse(ScheduleDatabase, self._get(_path("/v1/schedules/export", query)))

    def import_(self, database: ScheduleDatabase, target: str = "native") -> ImportResult:
        """Import schedules, which jobs will measure. Known schedules stay unchanged.

        They are sent in several requests if necessary. If one fails, the earlier ones are stored, and
        repeating the import stores the rest.
        """
        path, added = _path("/v1/schedules/import", {"target": target}), 0
        for part in database.parts():
            result = _parse(ImportResult, self._post(path, asdict(part)))
            added += result.added
        return ImportResult(result.device_class, len(database.records), added)

    def delete_imported(self, target: str = "native", workload: str | None = None) -> ImportsDeleted:
        """Delete the imported schedules of a device class, or of one workload, that no device has
        measured."""
        query = {"target": target} | ({} if workload is None else {"workload": workload})
        return _parse(ImportsDeleted, self._delete(_path("/v1/schedules/imported", query)))

    def create_token(self, name: str, scopes: Sequence[Scope], expires_after_s: float | None) -> NewToken:
        """Create a token. Only this response has its secret. With `expires_after_s` None, it never
        expires."""
        body = {"name": name, "scopes": list(scopes), "expires_after_s": expires_after_s}
        # Not repeated, because a token of the first attempt would remain with an unknown secret.
        answer = self._call(lambda: self._send("POST", "/v1/tokens", json=body), attempts=1)
        return _parse(NewToken, self._object(answer))

    def tokens(self) -> list[StoredToken]:
        """Return all tokens, also revoked and expired ones, newest first."""
        return _parse(list[StoredToken], self._get("/v1/tokens").get("items"))

    def revoke_token(self, token_id: str) -> StoredToken:
        """Revoke a token. Revoking it again changes nothing."""
        return _parse(StoredToken, self._delete(f"/v1/tokens/{quote(token_id, safe='')}"))

    def releases(self) -> list[Release]:
        """Return all releases, ordered by name and device class."""
        return _parse(list[Release], self._get("/v1/releases").get("items"))

    def release(self, name: str, job_id: str) -> Release:
        """Let a name point to a job's artifact, on the device class that it was compiled for."""
        path = f"/v1/releases/{quote(name, safe='')}"
        answer = self._call(lambda: self._send("PUT", path, json={"job": job_id}))
        return _parse(Release, self._object(answer))

    def delete_release(self, name: str, target: str = "native") -> None:
        """Delete a name on a device class. The artifact stays."""
        path = _path(f"/v1/releases/{quote(name, safe='')}", {"target": target})
        # Not repeated, because after a first attempt the name doesn't exist.
        self._call(lambda: self._send("DELETE", path), attempts=1)

    def download_release(
        self,
        name: str,
        into: Path,
        target: str = "native",
        *,
        bundle: bool = False,
        etag: str | None = None,
    ) -> str | None:
        """Write the artifact that a name points to, as `download_best` does, and return its ETag."""
        query = {"target": target} | ({"bundle": "true"} if bundle else {})
        path = _path(f"/v1/releases/{quote(name, safe='')}/artifact", query)
        return self._fetch_unless(etag, path, into)

    def signing_key(self) -> str:
        """Return the public key for signatures of artifacts. Raises ProblemError if the service signs
        none."""
        return str(self._get("/v1/signing-key").get("key"))

    def create_webhook(self, url: str, events: Sequence[WebhookEvent]) -> NewWebhook:
        """Let the service send signed messages about events to a URL. Only this response has the secret."""
        body = {"url": url, "events": list(events)}
        # Not repeated, because a webhook of the first attempt would remain with an unknown secret.
        answer = self._call(lambda: self._send("POST", "/v1/webhooks", json=body), attempts=1)
        return _parse(NewWebhook, self._object(answer))

    def webhooks(self) -> list[StoredWebhook]:
        """Return all webhooks, oldest first."""
        return _parse(list[StoredWebhook], self._get("/v1/webhooks").get("items"))

    def webhook_deliveries(self, webhook_id: str) -> list[WebhookDelivery]:
        """Return the last messages for a webhook, newest first."""
        path = f"/v1/webhooks/{quote(webhook_id, safe='')}/deliveries"
        return _parse(list[WebhookDelivery], self._get(path).get("items"))

    def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook with its messages."""
        path = f"/v1/webhooks/{quote(webhook_id, safe='')}"
        self._call(lambda: self._send("DELETE", path), attempts=1)

    def report(self, job_id: str) -> str:
        """Return an HTML file with a job's charts and programs, which needs no service and no network."""
        path = f"/v1/jobs/{quote(job_id, safe='')}/report"
        return self._call(lambda: self._send("GET", path)).data.decode()

    def events(self, job_id: str, after: str | None = None) -> Iterator[JobEvent]:
        """Yield a job's events until it is finished, from the first event, or after the event `after`.

        If the connection breaks, the client reconnects. No event is lost or repeated.
        """
        failures = 0
        while True:
            try:
                for event in self._stream(job_id, after):
                    after, failures = event.id, 0
                    yield event
            except HTTPError as error:
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

    def download(self, job_id: str, into: Path, *, bundle: bool = False) -> None:
        """Write a finished job's artifact, a tar file, or its `bundle` for C and C++ programs.

        Raises OSError when `into` can't be written.
        """
        self._fetch(_path(f"/v1/jobs/{job_id}/artifact", {"bundle": "true"} if bundle else {}), into)

    def _act(self, worker_id: str, action: str) -> Worker:
        return _parse(Worker, self._post(f"/v1/workers/{quote(worker_id, safe='')}:{action}"))

    def _stream(self, job_id: str, after: str | None) -> Iterator[JobEvent]:
        headers = {"Last-Event-ID": after} if after is not None else {}
        path = f"/v1/jobs/{job_id}/events"
        with self._send("GET", path, headers, timeout=EVENT_TIMEOUT, preload_content=False) as answer:
            _raise_for_problem(answer, self.url)
            # Read the available data instead of blocks of a fixed size, so that an event needn't wait for the
            # next ones.
            pieces = iter(lambda: answer.read1(CHUNK_BYTES), b"")
            for sent in SSEClient(pieces).events():
                try:
                    data = json.loads(sent.data)
                except ValueError as error:
                    raise ClientError(f"the service sent an event that is not understood: {error}") from error
                yield _parse(JobEvent, {"id": sent.id, "kind": sent.event, "data": data})

    def _fetch(self, path: str, into: Path, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Write the body of a successful response to a file. Return the response without its body."""

        def fetch() -> HttpResponse:
            with self._send("GET", path, headers, preload_content=False) as answer:
                if not _is_success(answer):
                    answer.read(cache_content=True)
                    return answer
                with new_file(into) as file:
                    for chunk in answer.stream(CHUNK_BYTES, decode_content=True):
                        file.write(chunk)
                return answer

        return self._call(fetch)

    def _fetch_unless(self, etag: str | None, path: str, into: Path) -> str | None:
        """Write a response to a file unless its ETag is `etag`. Return the ETag; None if nothing was
        written."""
        answer = self._fetch(path, into, {} if etag is None else {"If-None-Match": etag})
        return None if answer.status == HTTPStatus.NOT_MODIFIED else answer.headers.get("etag", "")

    def _get(self, path: str) -> dict[str, Any]:
        return self._object(self._call(lambda: self._send("GET", path)))

    def _post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        return self._object(self._call(lambda: self._send("POST", path, headers, json=body)))

    def _upload(self, path: str, size: int, chunks: Callable[[], Iterator[bytes]]) -> dict[str, Any]:
        """Post `size` bytes; each attempt reads them anew."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        try:
            return self._object(self._call(lambda: self._send("POST", path, headers, body=chunks())))
        except FileCutShort as error:
            raise ClientError(str(error)) from error

    def _delete(self, path: str) -> dict[str, Any]:
        return self._object(self._call(lambda: self._send("DELETE", path)))

    def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: urllib3.Timeout = TIMEOUT,
        **request: Any,
    ) -> HttpResponse:
        """Send a request once, with further arguments for urllib3. Raises urllib3's HTTPError."""
        return self._http.request(
            method,
            self.url + path,
            headers={**self._headers, **(headers or {})},
            timeout=timeout,
            retries=False,
            redirect=False,
            **request,
        )

    def _call(self, send: Callable[[], HttpResponse], attempts: int = ATTEMPTS) -> HttpResponse:
        """Send a request until the response is neither 429 nor a 503 with Retry-After. `send` must be
        idempotent unless `attempts` is 1."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(HTTPError)
            | tenacity.retry_if_result(lambda answer: _asked_pause_s(answer) is not None),
            stop=tenacity.stop_after_attempt(attempts),
            wait=_pause_s,
            sleep=self._sleep,
            retry_error_callback=_last_answer,
        )
        try:
            answer: HttpResponse = retrying(send)
        except HTTPError as error:
            raise self._unreachable(error) from error
        if answer.status != HTTPStatus.NOT_MODIFIED:
            _raise_for_problem(answer, self.url)
        return answer

    def _object(self, answer: HttpResponse) -> dict[str, Any]:
        try:
            body = answer.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise ClientError(f"{self.url} is no tunefarm service: its response isn't understood")
        return body

    def _unreachable(self, error: HTTPError) -> UnreachableError:
        cause = str(error.__cause__ or error.__context__ or error) or type(error).__name__
        return UnreachableError(f"no tunefarm service answers at {self.url} ({cause})")


def _pool(scheme: str, host: str, context: ssl.SSLContext | None) -> urllib3.PoolManager:
    """Return the connections to a service, through the environment's proxy for its host."""
    # A proxy can't reach this machine's loopback.
    proxies = {} if is_loopback(host) or proxy_bypass(host) else getproxies()
    proxy = proxies.get(scheme, proxies.get("all"))
    if proxy is None:
        return urllib3.PoolManager(maxsize=CONNECTIONS, ssl_context=context)
    login = urllib3.util.parse_url(proxy).auth
    headers = urllib3.make_headers(proxy_basic_auth=login) if login else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers, maxsize=CONNECTIONS, ssl_context=context)


def tls_context(tls: TlsFiles | None) -> ssl.SSLContext | None:
    """Return a TLS context with the given authority and certificate. Raises TlsError."""
    if not tls:
        return None
    context = ssl.create_default_context() if tls.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.load_into(context)
    return context


def _path(path: str, query: Mapping[str, str | int | Sequence[str]]) -> str:
    return f"{path}?{urlencode(query, doseq=True)}" if query else path


def _pause_s(state: tenacity.RetryCallState) -> float:
    """Return the seconds that the service asked to wait, or a pause that grows with each failure."""
    if state.outcome is None or state.outcome.failed:
        return min(0.1 * 2.0 ** (state.attempt_number - 1), 2.0)
    pause_s = _asked_pause_s(state.outcome.result())
    assert pause_s is not None, "other answers are final"
    _log.warning("the service takes no more requests for now: trying again in %.0f s", pause_s)
    return pause_s


def _asked_pause_s(answer: HttpResponse) -> float | None:
    """Return the seconds in a response's Retry-After header; None without one."""
    asked = answer.headers.get("retry-after", "")
    if answer.status not in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        return None
    if asked.isdecimal():
        return min(float(asked), MAX_PAUSE_S)
    return 1.0 if answer.status == HTTPStatus.TOO_MANY_REQUESTS else None


def _last_answer(state: tenacity.RetryCallState) -> Any:
    """Return the response of the last attempt, or raise its exception."""
    assert state.outcome is not None, "there was an attempt"
    return state.outcome.result()


def _is_success(answer: HttpResponse) -> bool:
    return 200 <= answer.status < 300


def _raise_for_problem(answer: HttpResponse, url: str) -> None:
    """Raise ProblemError for an unsuccessful response."""
    if _is_success(answer):
        return
    reason = answer.reason or ""
    kind, title, detail = "about:blank", reason, f"{url} answered {answer.status} {reason}".rstrip()
    with contextlib.suppress(ValueError):
        match answer.json():
            case {"title": str(told), **further}:
                title, detail = told, str(further.get("detail", ""))
                kind = str(further.get("type", kind))
    raise ProblemError(answer.status, kind, title, detail, _asked_pause_s(answer))


def _parse(kind: type[Value], answer: object) -> Value:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise ClientError(f"the service's answer is not understood: {error}") from error
