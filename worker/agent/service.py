"""Calls to the service. They are retried while it is unavailable, and fail when it refuses this worker."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from proto import fleet_pb2 as pb
from proto.convert import WireError, library_to_wire, outputs_to_wire, report_to_wire, response_from_wire
from proto.fleet_pb2_grpc import FleetStub
from proto.messages import (
    MAX_LIBRARY_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_OUTPUTS_BYTES,
    LibraryUpload,
    OutputsUpload,
    SyncResponse,
    WorkerReport,
)
from system import tracing
from system.ip_addresses import is_loopback
from system.tls import TlsFiles

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

ANSWER_TIMEOUT_S = 20.0
BLOB_TIMEOUT_S = 600.0
BLOB_TRIES = 3
MAX_CACHED_CHARS = 64 << 20
FIRST_PAUSE_S = 0.2

# gRPC statuses for which a retry doesn't help, with what to do next.
_FINAL = {
    grpc.StatusCode.UNAUTHENTICATED: "check --token",
    grpc.StatusCode.PERMISSION_DENIED: "make it one with `tunefarm token create --scope worker`",
    grpc.StatusCode.ALREADY_EXISTS: "each device has a name and a token of its own",
    grpc.StatusCode.FAILED_PRECONDITION: "install the same tunefarm version on both sides",
    grpc.StatusCode.INVALID_ARGUMENT: "install the same tunefarm version on both sides",
    grpc.StatusCode.UNIMPLEMENTED: "check that --server is the address of the service's gRPC port",
}

# Seconds without a first response before a warning, because the service may still be starting.
START_GRACE_S = 10.0
# Parts of gRPC's error messages that a wrong flag causes, with what to do next.
_HINTS = {
    "CERTIFICATE_VERIFY_FAILED": ", give the service's authority with --ca",
    "WRONG_VERSION_NUMBER": ", leave --tls out or turn TLS on in the service",
    "Hostname Verification": ", its certificate doesn't name the host in --server",
    "Socket closed": ", give --tls if the service uses TLS, and --cert and --key if it uses mutual TLS",
}


class WorkerRefused(Exception):
    """The service refuses this worker. The message says why and what to do next."""


class NotStored(Exception):
    """The service doesn't have a file or a workload of the lease."""


def open_channel(address: str, reconnect_max_s: float, tls: TlsFiles | None = None) -> grpc.aio.Channel:
    """Open a gRPC channel to HOST:PORT that detects a lost connection, and reconnects soon.

    The channel is unencrypted without `tls`. Raises TlsError.
    """
    options = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", int(FIRST_PAUSE_S * 1000)),
        ("grpc.min_reconnect_backoff_ms", int(FIRST_PAUSE_S * 1000)),
        ("grpc.max_reconnect_backoff_ms", int(reconnect_max_s * 1000)),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]
    if is_loopback(address.rpartition(":")[0].strip("[]")):
        # gRPC would use the environment's proxy, which can't reach this machine's loopback.
        options.append(("grpc.enable_http_proxy", 0))
    interceptors = None
    if tracing.is_on():
        from opentelemetry.instrumentation.grpc import aio_client_interceptors

        # Each call without a lease would start a new trace.
        interceptors = aio_client_interceptors(  # type: ignore[no-untyped-call]
            filter_=lambda _: bool(tracing.current())
        )
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
    texts = tls.read()
    credentials = grpc.ssl_channel_credentials(texts.ca, texts.key, texts.cert)
    return grpc.aio.secure_channel(address, credentials, options=options, interceptors=interceptors)


class FleetClient:
    """The calls of a worker. They are retried, with growing pauses, until the service answers. All raise
    WorkerRefused."""

    def __init__(
        self, channel: grpc.aio.Channel, address: str, token: str | None, reconnect_max_s: float
    ) -> None:
        self._stub = FleetStub(channel)  # type: ignore[arg-type]
        self._address = address
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._reconnect_max_s = reconnect_max_s
        self._workloads: OrderedDict[str, str] = OrderedDict()
        self._has_answered = False

    async def synchronize(self, report: Callable[[], WorkerReport]) -> tuple[WorkerReport, SyncResponse]:
        """Send a report, which is built anew for each attempt. Return the report that arrived, and the
        response."""

        async def call() -> tuple[WorkerReport, SyncResponse]:
            current = report()
            return current, await self.synchronize_once(current, current.wait_s + ANSWER_TIMEOUT_S)

        return await self._retry(call)

    async def synchronize_once(self, report: WorkerReport, timeout_s: float) -> SyncResponse:
        """Try to send a report once. Raises grpc.RpcError too."""
        wire = await self._stub.Synchronize(  # type: ignore[misc]
            report_to_wire(report), timeout=timeout_s, metadata=self._metadata
        )
        try:
            return response_from_wire(wire, report.held)
        except WireError as error:
            hint = _FINAL[grpc.StatusCode.FAILED_PRECONDITION]
            raise WorkerRefused(f"the service's answer makes no sense ({error}): {hint}") from error

    async def workload(self, workload_hash: str) -> str:
        """Return a workload's module as JSON, from a cache or from the service. Raises NotStored."""

        async def call() -> str:
            request = pb.WorkloadRequest(workload_hash=workload_hash)
            wire = await self._stub.GetWorkload(  # type: ignore[misc]
                request, timeout=ANSWER_TIMEOUT_S, metadata=self._metadata
            )
            return str(wire.module_json)

        if workload_hash not in self._workloads:
            self._workloads[workload_hash] = await self._retry(call)
            while len(self._workloads) > 1 and sum(map(len, self._workloads.values())) > MAX_CACHED_CHARS:
                self._workloads.popitem(last=False)
        self._workloads.move_to_end(workload_hash)
        return self._workloads[workload_hash]

    async def fetch_blob(self, sha256: str, path: Path) -> None:
        """Download a stored file to `path`. Raises NotStored, and OSError if it can't be written."""

        async def download() -> str:
            digest = hashlib.sha256()
            request = pb.BlobRequest(sha256=sha256)
            call = self._stub.GetBlob(request, timeout=BLOB_TIMEOUT_S, metadata=self._metadata)
            with path.open("wb") as file:
                async for chunk in call:  # type: ignore[attr-defined]
                    digest.update(chunk.data)
                    file.write(chunk.data)
            return digest.hexdigest()

        for _ in range(BLOB_TRIES):
            if await self._retry(download) == sha256:
                return
            _log.warning("the file %s arrived damaged", sha256)
        raise NotStored(f"the file {sha256} arrived damaged {BLOB_TRIES} times")

    async def put_library(self, library: LibraryUpload) -> str:
        """Send the library of a trial. Return why the service refuses it; "" if it stores it."""
        if len(library.data) > MAX_LIBRARY_BYTES:
            return f"it has {len(library.data)} bytes, and {MAX_LIBRARY_BYTES} are allowed"
        return await self._upload(self._stub.PutLibrary, library_to_wire(library))

    async def put_outputs(self, outputs: OutputsUpload) -> str:
        """Send the outputs of a module run. Return why the service refuses them; "" if it stores them."""
        if len(outputs.data) > MAX_OUTPUTS_BYTES:
            return f"they have {len(outputs.data)} bytes, and {MAX_OUTPUTS_BYTES} are allowed"
        return await self._upload(self._stub.PutOutputs, outputs_to_wire(outputs))

    async def _upload(self, put: Any, message: pb.Library | pb.Outputs) -> str:
        """Send a file until there is a response. Return why the service refuses it; "" if it stores it."""

        async def call() -> str:
            answer = await put(message, timeout=BLOB_TIMEOUT_S, metadata=self._metadata)
            return str(answer.refused)

        return await self._retry(call)

    async def _retry(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Call until there is a response. Raises WorkerRefused and NotStored."""
        tries = AsyncRetrying(
            retry=retry_if_exception(_is_transient),
            wait=wait_random_exponential(multiplier=FIRST_PAUSE_S, max=self._reconnect_max_s),
            before_sleep=self._log_retry,
            reraise=True,
        )
        try:
            response: _T = await tries(call)
            self._has_answered = True
            return response
        except grpc.RpcError as error:
            if _code(error) is grpc.StatusCode.NOT_FOUND:
                raise NotStored(_details(error)) from error
            raise WorkerRefused(
                f"{self._address} refused this worker: {_details(error)}; {_FINAL[_code(error)]}"
            ) from error

    def _log_retry(self, state: RetryCallState) -> None:
        """Warn after 1, 2, 4, 8... attempts, so that a long outage doesn't fill the log.

        Before the first warning, the service gets time to start, because it may start together with this
        worker.
        """
        tries = state.attempt_number
        is_starting = not self._has_answered and (state.seconds_since_start or 0.0) < START_GRACE_S
        if tries & (tries - 1) == 0 and state.outcome is not None and not is_starting:
            reason = _details(state.outcome.exception())
            hint = next((hint for sign, hint in _HINTS.items() if sign in reason), "")
            error = state.outcome.exception()
            lets_in = error is None or _code(error) is not grpc.StatusCode.ABORTED
            does = "doesn't answer" if lets_in else "refuses this worker for now"
            _log.warning("%s %s (%s)%s: still trying, %d so far", self._address, does, reason, hint, tries)


def _is_transient(error: BaseException) -> bool:
    if not isinstance(error, grpc.RpcError):
        return False
    return _code(error) is not grpc.StatusCode.NOT_FOUND and _code(error) not in _FINAL


def _code(error: BaseException) -> grpc.StatusCode:
    return error.code() if isinstance(error, grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN


def _details(error: BaseException | None) -> str:
    return (error.details() or error.code().name) if isinstance(error, grpc.aio.AioRpcError) else str(error)
