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

_log = logging.getLogger("server")

_STOP_GRACE_S = 3
# A call waits for the database some fifteen times, and each time until the thread that computes gives up the
# interpreter's lock. With Python's interval of 5 ms, 1,000 workers had their leases after 71 ms (median) and
# not 24, p99 374 and not 150.
_SWITCH_INTERVAL_S = 0.0005
# Threads that use the database. A transaction waits for PostgreSQL about as long as it computes, and one
# thread computes at a time: with more threads, each would only hold its locks for longer.
_DATABASE_THREADS = 8
EXIT_FAILED = 1
EXIT_MISUSE = 2


class StartError(Exception):
    """The server can't start; the message is one sentence for the user."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Return the exit code: 0 stopped, 1 can't start, 2 wrong settings."""
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
    """Serve HTTP on the socket, and workers on the settings' gRPC port, until `context.stopping` is set.

    Raises RuntimeError when the gRPC port can't be bound, TlsError.
    """
    settings, tls = context.settings, context.settings.tls
    # asyncio does this only for sockets that name their protocol; without it an answer takes 40 ms longer.
    http.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    grpc_server, grpc_port = await _start_grpc(context)
    http_config = uvicorn.Config(
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
    http_server = _HttpServer(http_config)
    serving = asyncio.create_task(http_server.serve(sockets=[http]))
    stopping = asyncio.create_task(context.stopping.wait())
    auditing = asyncio.create_task(context.audit.flush_regularly(context.stopping))
    clients = " (TLS, clients need a certificate)" if tls.ca else " (TLS)" if tls else ""
    host, port = settings.host, http.getsockname()[1]
    _log.info("serving HTTP on %s:%s and workers on %s:%s%s", host, port, host, grpc_port, clients)
    if not settings.loopback and not tls:
        _log.warning(
            "tokens and models cross the network in clear: set TUNEFARM_TLS_CERT and TUNEFARM_TLS_KEY, "
            "unless a proxy in front of this server does TLS"
        )
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    context.stopping.set()
    http_server.should_exit = True
    await asyncio.gather(grpc_server.stop(_STOP_GRACE_S), serving, stopping, auditing)


class _HttpServer(uvicorn.Server):
    """Leaves signals to `_run`, which stops both servers at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _run(settings: ServerSettings) -> None:
    """Serve until a signal. Raises StartError, StorageError, TlsError."""
    # Every worker has a connection; by default a process may have 1,024, though it may ask for more.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # a system may say more than it grants
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_DATABASE_THREADS, "records"))
    with _listen(settings.host, settings.port, "TUNEFARM_PORT") as http:
        # Tried here because gRPC says only in a log of its own why it can't have a port.
        _listen(settings.host, settings.grpc_port, "TUNEFARM_GRPC_PORT").close()
        database = Database(settings.database_url)
        try:
            await asyncio.to_thread(database.migrate)
            try:
                wake = Waker(make_app(settings.broker))
            except (OSError, ValueError) as error:
                raise StartError(f"the broker can't be used: {error}") from error
            context = ServerContext(settings, database, wake, time.time, lambda: uuid.uuid4().hex)
            # The objects made so far stay: every collection that looked through them would take as long as
            # several calls.
            gc.freeze()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, context.stopping.set)
            await serve(context, http)
        finally:
            database.close()


def _listen(host: str, port: int, variable: str) -> socket.socket:
    """Return a listening socket. Raises StartError, which names the variable that sets the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        cause = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise StartError(
            f"can't listen on {host} port {port} ({cause}): stop what uses it or set {variable} to another "
            "port"
        ) from error


async def _start_grpc(context: ServerContext) -> tuple[grpc.aio.Server, int]:
    """Return the gRPC server for workers, started, and its port. Raises RuntimeError, TlsError."""
    settings = context.settings
    options = [
        # Without this two servers can share a port, and each gets half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]
    interceptors = [AccessInterceptor(context.authenticator, context.audit)]
    server = grpc.aio.server(interceptors=interceptors, options=options)
    add_FleetServicer_to_server(FleetService(context), server)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.grpc_port}"
    if settings.tls:
        texts = settings.tls.checked()
        assert texts.key is not None, "a server's TlsFiles have a certificate"
        assert texts.cert is not None
        pairs = [(texts.key, texts.cert)]
        credentials = grpc.ssl_server_credentials(pairs, texts.ca, require_client_auth=texts.ca is not None)
        port = server.add_secure_port(address, credentials)
    else:
        port = server.add_insecure_port(address)
    await server.start()
    return server, port


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
