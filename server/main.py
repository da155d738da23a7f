"""The server's process: HTTP and gRPC in one event loop."""

from __future__ import annotations

import argparse
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
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc.aio
import uvicorn

from proto.fleet_pb2_grpc import add_FleetServicer_to_server
from proto.messages import MAX_MESSAGE_BYTES
from records.storage.database import Database, StorageError
from scheduler.app import Waker, make_app
from server.access.interceptor import AccessInterceptor
from server.app import create_app
from server.context import ServerContext
from server.fleet.service import FleetService
from server.settings import ServerSettings
from system.settings import SettingsError, read_settings
from system.tls import TlsFiles

_log = logging.getLogger("server")

_STOP_GRACE_S = 3
# A call waits for the database some fifteen times, and each time until the thread that computes lets it go
# on. With Python's 5 ms, 1,000 workers had their leases after 71 ms (median) and not 24, p99 374 and not 150.
_SWITCH_S = 0.0005
# For what uses the database. A transaction waits for PostgreSQL about as long as it computes, and one thread
# computes at a time: with more of them, each would only hold its locks for longer.
_THREADS = 8
EXIT_FAILED = 1
EXIT_MISUSE = 2


class StartError(Exception):
    """The server can't start; the message is one sentence for the user."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT. The exit code: 0 stopped, 1 can't start, 2 wrong settings."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        settings = _settings(argv)
        asyncio.run(_run(settings))
    except SettingsError as error:
        return _give_up(str(error), EXIT_MISUSE)
    except (StartError, StorageError) as error:
        return _give_up(str(error), EXIT_FAILED)
    return 0


async def serve(context: ServerContext, http: socket.socket) -> None:
    """Serves HTTP on the socket, and workers on the settings' gRPC port, until `context.stopping` is set.

    Raises RuntimeError when the gRPC port can't be had, TlsError.
    """
    # asyncio does this only for sockets that name their protocol; without it an answer takes 40 ms longer.
    http.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    workers, port = await _start_fleet(context)
    server = _Server(_http_config(context))
    serving = asyncio.create_task(server.serve(sockets=[http]))
    stopping = asyncio.create_task(context.stopping.wait())
    auditing = asyncio.create_task(context.audit.tend(context.stopping))
    _say_where(context.settings, http.getsockname()[1], port)
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    context.stopping.set()
    server.should_exit = True
    await asyncio.gather(workers.stop(_STOP_GRACE_S), serving, stopping, auditing)


def _http_config(context: ServerContext) -> uvicorn.Config:
    tls = context.settings.tls
    return uvicorn.Config(
        create_app(context),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_STOP_GRACE_S,
        ssl_certfile=tls.cert,
        ssl_keyfile=tls.key,
        ssl_ca_certs=None if tls.ca is None else str(tls.ca),
        ssl_cert_reqs=ssl.CERT_NONE if tls.ca is None else ssl.CERT_REQUIRED,
    )


def _say_where(settings: ServerSettings, port: int, grpc_port: int) -> None:
    clients = " (TLS, clients need a certificate)" if settings.tls.ca else " (TLS)" if settings.tls else ""
    host = settings.host
    _log.info("serving HTTP on %s:%s and workers on %s:%s%s", host, port, host, grpc_port, clients)
    if not settings.loopback and not settings.tls:
        _log.warning(
            "tokens and models cross the network in clear: set TUNEFARM_TLS_CERT and TUNEFARM_TLS_KEY, "
            "unless a proxy in front of this server does TLS"
        )


class _Server(uvicorn.Server):
    """Leaves signals to `_run`, which stops both servers at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _run(settings: ServerSettings) -> None:
    _allow_many_connections()
    sys.setswitchinterval(_SWITCH_S)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "records"))
    with _listen(settings.host, settings.port, "TUNEFARM_PORT") as http:
        # gRPC says only in a log of its own why it can't have a port.
        _listen(settings.host, settings.grpc_port, "TUNEFARM_GRPC_PORT").close()
        database = Database(settings.database_url)
        try:
            await asyncio.to_thread(database.migrate)
            context = ServerContext(
                settings, database, _waker(settings.broker), time.time, lambda: uuid.uuid4().hex
            )
            # What is there by now stays: looking through it for garbage takes as long as several calls.
            gc.freeze()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, context.stopping.set)
            await serve(context, http)
        finally:
            database.close()


def _allow_many_connections() -> None:
    """Every worker has one; by default a process may have 1,024 open, though it may ask for more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # a system may say more than it grants
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _waker(broker: str) -> Waker:
    try:
        return Waker(make_app(broker))
    except (OSError, ValueError) as error:
        raise StartError(f"the broker can't be used: {error}") from error


def _listen(host: str, port: int, variable: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        cause = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise StartError(_port_problem(host, port, variable, cause)) from error


async def _start_fleet(context: ServerContext) -> tuple[grpc.aio.Server, int]:
    settings = context.settings
    guards = [AccessInterceptor(context.authenticator, context.audit)]
    options = [
        # Without this two servers can share a port, and each gets half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]
    server = grpc.aio.server(interceptors=guards, options=options)
    add_FleetServicer_to_server(FleetService(context), server)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    port = _bind(server, f"{host}:{settings.grpc_port}", settings.tls)
    await server.start()
    return server, port


def _bind(server: grpc.aio.Server, address: str, tls: TlsFiles) -> int:
    """The port. Raises TlsError."""
    if not tls:
        return server.add_insecure_port(address)
    texts = tls.checked()
    assert texts.key is not None, "a server's TlsFiles have a certificate"
    assert texts.cert is not None
    pairs = [(texts.key, texts.cert)]
    credentials = grpc.ssl_server_credentials(pairs, texts.ca, require_client_auth=texts.ca is not None)
    return server.add_secure_port(address, credentials)


def _port_problem(host: str, port: int, variable: str, cause: str) -> str:
    return (
        f"can't listen on {host} port {port} ({cause}): stop what uses it or set {variable} to another port"
    )


def _settings(argv: Sequence[str] | None) -> ServerSettings:
    parser = argparse.ArgumentParser("tunefarm server", description="Serves HTTP and workers.")
    parser.add_argument("--host", help="address to listen on (TUNEFARM_HOST, default 127.0.0.1)")
    parser.add_argument("--port", help="HTTP port (TUNEFARM_PORT)")
    parser.add_argument("--grpc-port", help="port for workers (TUNEFARM_GRPC_PORT)")
    parser.add_argument("--database-url", help="SQLAlchemy URL (TUNEFARM_DATABASE_URL)")
    parser.add_argument("--broker", help="the scheduler's broker: a folder or URL (TUNEFARM_BROKER)")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain (TUNEFARM_TLS_CERT)")
    parser.add_argument("--tls-key", metavar="FILE", help="its key (TUNEFARM_TLS_KEY)")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", help="whose certificates clients need (TUNEFARM_TLS_CLIENT_CA)"
    )
    return read_settings(ServerSettings, vars(parser.parse_args(argv)))


def _give_up(sentence: str, code: int) -> int:
    print(f"tunefarm server: {sentence}", file=sys.stderr)
    return code
