"""The server's process: HTTP and gRPC in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import resource
import signal
import socket
import ssl
import sys
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import grpc
import grpc.aio
import typer
import uvicorn
import uvloop

from core.exit_code import ExitCode
from proto.fleet_pb2_grpc import add_FleetServicer_to_server
from proto.messages import MAX_MESSAGE_BYTES
from records.storage.blob_store import BlobStore
from records.storage.database import Database, StorageError
from scheduler.app import Waker, make_app
from server.access.interceptor import AccessInterceptor
from server.app import create_app
from server.context import ServerContext
from server.fleet.service import FleetService
from server.http_protocol import HEAD_S, BoundedHttpProtocol, TlsListener
from server.settings import ServerSettings
from server.threads import bound_threads
from system import logs, tracing
from system.command import CommandError, run_function
from system.errors import SettingsError
from system.settings import read_settings

_log = logging.getLogger("server")

_STOP_GRACE_S = 3
# Each worker has one open call, which mostly waits for work. Calls beyond the limit get RESOURCE_EXHAUSTED,
# and workers retry later.
MAX_CONCURRENT_CALLS = 20_000
# The most connections of workers, including handshakes. They leave half of the process's files to others.
MAX_CONNECTIONS = 20_000
# A connection without a call is closed after this time. A worker opens a new one.
_IDLE_S = 300.0
# A call waits for the database about fifteen times, and then for the interpreter's lock. With Python's
# interval of 5 ms, 1,000 workers got leases after 71 ms instead of 24 ms (median), p99 374 ms instead of 150
# ms.
_SWITCH_INTERVAL_S = 0.0005
# Collect garbage after this many new objects. Python's default is 700.
_GC_THRESHOLD = 10_000


def server(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (TUNEFARM_HOST, default 127.0.0.1).")
    ] = None,
    port: Annotated[int | None, typer.Option(help="HTTP port (TUNEFARM_PORT).")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="Port for workers (TUNEFARM_GRPC_PORT).")] = None,
    database_url: Annotated[str | None, typer.Option(help="SQLAlchemy URL (TUNEFARM_DATABASE_URL).")] = None,
    broker: Annotated[
        str | None, typer.Option(help="The scheduler's broker: a folder or URL (TUNEFARM_BROKER).")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate chain (TUNEFARM_TLS_CERT).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate's key (TUNEFARM_TLS_KEY).")
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Authorities; clients need a certificate of one of them (TUNEFARM_TLS_CLIENT_CA).",
        ),
    ] = None,
) -> None:
    """Serve HTTP and workers."""
    settings = read_settings(ServerSettings, context.params)
    try:
        with tracing.exported("server"):
            uvloop.run(_run(settings))
    except StorageError as error:
        raise CommandError(str(error), ExitCode.LOCAL) from error


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT. Return the exit code."""
    logs.configure(logging.INFO)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return run_function(server, "tunefarm server", arguments)


async def serve(context: ServerContext, http: socket.socket) -> None:
    """Serve HTTP on the socket, and workers on the settings' gRPC port, until `context.stopping` is set.

    Raises RuntimeError when the gRPC port can't be bound, TlsError.
    """
    settings, tls = context.settings, context.settings.tls
    bound_threads()
    # asyncio sets this only for sockets with an explicit protocol. Without it, a response takes 40 ms longer.
    http.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    grpc_server, grpc_port = await _start_grpc(context)
    http_server = _HttpServer(
        uvicorn.Config(
            create_app(context),
            log_config=None,
            # Anyone can cause log lines below this level, one for each request that isn't HTTP.
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            # Without it, a request joins the trace of the previous request on its connection.
            reset_contextvars=True,
            timeout_graceful_shutdown=_STOP_GRACE_S,
            ssl_certfile=tls.cert,
            ssl_keyfile=tls.key,
            ssl_ca_certs=None if tls.ca is None else str(tls.ca),
            ssl_cert_reqs=ssl.CERT_NONE if tls.ca is None else ssl.CERT_REQUIRED,
        )
    )
    serving = asyncio.create_task(http_server.serve(sockets=[http]))
    stopping = asyncio.create_task(context.stopping.wait())
    auditing = asyncio.create_task(context.audit.flush_regularly(context.stopping))
    encryption = " (TLS, clients need a certificate)" if tls.ca else " (TLS)" if tls else ""
    host, port = settings.host, http.getsockname()[1]
    _log.info("serving HTTP on %s:%s and workers on %s:%s%s", host, port, host, grpc_port, encryption)
    if not settings.loopback and not tls:
        _log.warning(
            "tokens and models are sent in clear: set TUNEFARM_TLS_CERT and TUNEFARM_TLS_KEY, "
            "unless a proxy in front of this server uses TLS"
        )
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    context.stopping.set()
    http_server.should_exit = True
    await asyncio.gather(grpc_server.stop(_STOP_GRACE_S), serving, stopping, auditing)


class _HttpServer(uvicorn.Server):
    """uvicorn's server with bounds on TLS handshakes and heads. `_run` handles signals, because it stops both
    servers."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as uvicorn does, with our protocols."""
        config, loop = self.config, asyncio.get_running_loop()
        new_protocol = partial(
            BoundedHttpProtocol, config=config, server_state=self.server_state, app_state=self.lifespan.state
        )
        self.servers = [
            TlsListener(listening, config.ssl, new_protocol)  # type: ignore[misc]  # it is only closed
            if config.ssl
            else await loop.create_server(new_protocol, sock=listening, backlog=config.backlog)
            for listening in sockets or ()
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _run(settings: ServerSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises StorageError, SettingsError and CommandError."""
    # Every worker has a connection. By default, a process may open 1,024 files, but may raise that limit.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems grant less than they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with _listen(settings.host, settings.port, "TUNEFARM_PORT") as http:
        # Bind the port here, because gRPC only logs why it can't listen.
        _listen(settings.host, settings.grpc_port, "TUNEFARM_GRPC_PORT").close()
        store = None if settings.blob_store is None else BlobStore(settings.blob_store)
        database = Database(settings.database_url, blob_store=store)
        try:
            await asyncio.to_thread(database.migrate)
            try:
                waker = Waker(make_app(settings.broker))
            except ValueError as error:
                raise SettingsError(str(error)) from error
            except OSError as error:
                raise CommandError(f"the broker can't be used: {error}", ExitCode.LOCAL) from error
            context = ServerContext(settings, database, waker, database.now, lambda: uuid.uuid4().hex)
            context.signing_key  # noqa: B018 - a wrong file is said now
            # The objects created so far are permanent. Garbage collections that visit them would take as long
            # as calls.
            gc.freeze()
            # A lease makes thousands of objects, few of them in cycles.
            gc.set_threshold(_GC_THRESHOLD)
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, context.stopping.set)
            await serve(context, http)
        finally:
            database.close()


def _listen(host: str, port: int, variable: str) -> socket.socket:
    """Listen on a port, which is set by an environment variable. Raises CommandError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        cause = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise CommandError(
            f"can't listen on {host} port {port} ({cause}): "
            f"stop what uses it or set {variable} to another port",
            ExitCode.LOCAL,
        ) from error


async def _start_grpc(context: ServerContext) -> tuple[grpc.aio.Server, int]:
    """Start the gRPC server; return it and its port. Raises TlsError."""
    settings, tls = context.settings, context.settings.tls
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    interceptors: list[grpc.aio.ServerInterceptor] = [AccessInterceptor(context.authenticator, context.audit)]
    if tracing.is_on():
        from opentelemetry.instrumentation.grpc import aio_server_interceptor

        interceptors.append(aio_server_interceptor(filter_=_is_traced))  # type: ignore[no-untyped-call]
    server = grpc.aio.server(
        interceptors=interceptors,
        maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS,
        options=[
            # Without this, two servers could share a port, and each would get half of the calls.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.server_handshake_timeout_ms", round(1000 * HEAD_S)),
            ("grpc.max_allowed_incoming_connections", min(MAX_CONNECTIONS, most_files // 2)),
            ("grpc.max_connection_idle_ms", round(1000 * _IDLE_S)),
        ],
    )
    add_FleetServicer_to_server(FleetService(context), server)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.grpc_port}"
    if tls:
        texts = tls.read()
        assert texts.key is not None, "a server's TlsFiles have a certificate"
        assert texts.cert is not None
        credentials = grpc.ssl_server_credentials(
            [(texts.key, texts.cert)], texts.ca, require_client_auth=texts.ca is not None
        )
        port = server.add_secure_port(address, credentials)
    else:
        port = server.add_insecure_port(address)
    await server.start()
    return server, port


def _is_traced(call: grpc.HandlerCallDetails) -> bool:
    """Return whether a call belongs to a trace. Calls of idle workers don't, because each would start a new
    trace."""
    return any(name == "traceparent" for name, _ in call.invocation_metadata or ())
