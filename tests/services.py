"""Databases and Redis for tests and benchmarks. Private servers end with the process that started them."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import redis
import trustme

from records.storage.database import Database
from records.storage.tables import Base
from system.linux import die_with_parent

# With characters that mean something in a URL.
PASSWORD = "s3/cr@t:%"
_ACCESS = f"tunefarm:{quote(PASSWORD, safe='')}"
_PATIENCE_S = 30.0


class Missing(Exception):
    """A server's program is not installed here. The message says which one and how to install it."""


class Process:
    """A server's process, which can be stopped and started again."""

    # Ends it at once, as in a crash. Background processes of a shell may ignore SIGQUIT.
    crash = signal.SIGKILL

    def __init__(
        self, command: Sequence[object], folder: Path, is_up: Callable[[], None], **popen: Any
    ) -> None:
        self._command = [str(word) for word in command]
        self._log = folder / "log"
        self._is_up = is_up
        self._popen = popen
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
                **self._popen,
            )
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._is_up()
            except (psycopg.OperationalError, redis.RedisError):
                words = self._log.read_text(errors="replace")[-2000:]
                assert self._process.poll() is None, words
                assert time.monotonic() < deadline, words
                time.sleep(0.02)

    @property
    def pid(self) -> int:
        """Return the id of the server's process."""
        assert self._process is not None, "it was started"
        return self._process.pid

    def stop(self) -> None:
        """Stop the server at once, as in a crash."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(self.crash)
            self._process.wait(_PATIENCE_S)
            self._process = None


class Postgresql(Process):
    """A cluster that asks for PASSWORD, by its Unix socket and by TCP. With `tls`, TCP is encrypted."""

    crash = signal.SIGQUIT  # SIGKILL would leave its children

    def __init__(
        self,
        programs: Path,
        folder: Path,
        durable: bool,
        settings: Mapping[str, object],
        tls: bool = False,
        **popen: Any,
    ) -> None:
        self._folder = folder
        self._tls = tls
        self.port = free_port()
        flags: dict[str, object] = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": folder,
        }
        if not durable:
            # Commits still survive the server's crash, but not the machine's.
            flags |= {"fsync": "off", "full_page_writes": "off"}
            flags |= {"shared_buffers": "64MB"}
        if tls:
            flags |= {
                "ssl": "on",
                "ssl_cert_file": folder / "server.pem",
                "ssl_key_file": folder / "server.key",
            }
        words = [
            word for name, value in (flags | dict(settings)).items() for word in ("-c", f"{name}={value}")
        ]
        command = [programs / "postgres", "-D", folder / "data", *words]
        super().__init__(command, folder, lambda: self.execute("SELECT 1"), **popen)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://{_ACCESS}@/{database}?host={self._folder}&port={self.port}"

    def tcp_url(self, database: str = "postgres", port: int | None = None) -> str:
        """Return the URL by TCP. `port` is the port of a link to the server."""
        options = f"?sslmode=verify-full&sslrootcert={self._folder}/ca.pem" if self._tls else ""
        return f"postgresql+psycopg://{_ACCESS}@127.0.0.1:{port or self.port}/{database}{options}"

    def create(self, database: str) -> str:
        """Create an empty database; return its URL."""
        self.execute(f"CREATE DATABASE {database}")
        return self.url(database)

    def execute(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(_conninfo(self.url(database)), autocommit=True) as connection:
            connection.execute(statement)

    def settle(self, database: str) -> None:
        """Run the background work of many writes now."""
        for statement in ("VACUUM (ANALYZE)", "CHECKPOINT"):
            self.execute(statement, database)


class Redis(Process):
    """A Redis without persistence."""

    def __init__(self, program: str, folder: Path) -> None:
        self.port = free_port()
        settings = folder / "redis.conf"
        access = f'bind 127.0.0.1\nport {self.port}\nrequirepass "{PASSWORD}"\n'
        settings.write_text(f'{access}save ""\nappendonly no\ndir {folder}\n')
        super().__init__([program, settings], folder, self._ping)

    @property
    def url(self) -> str:
        return self.url_by(self.port)

    def url_by(self, port: int) -> str:
        """Return the URL by the port of a link to it."""
        return f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/0"

    def flush(self) -> None:
        """Forget every key."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def _ping(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.ping()


def sqlite(file: Path) -> str:
    """Return the URL of a database in a file; a new one is empty, and of the current schema."""
    if not file.exists():
        file.write_bytes(_empty_sqlite())
    return f"sqlite:///{file}"


def renewed_sqlite(file: Path) -> str:
    """Empty a database in a file without connections; return its URL."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)
    return sqlite(file)


@cache
def _empty_sqlite() -> bytes:
    """Migrate once, because a copy takes a hundredth of the time."""
    with tempfile.TemporaryDirectory(prefix="tunefarm-sqlite-") as folder:
        file = Path(folder) / "empty.db"
        with closing(Database(f"sqlite:///{file}")) as database:
            database.migrate()
        return file.read_bytes()


class Emptied:
    """A migrated database that is emptied for every test, in milliseconds."""

    def __init__(self, url: str) -> None:
        self.url = url
        database = Database(url)
        database.migrate()
        database.close()
        tables = reversed(Base.metadata.sorted_tables)
        self._statements = "; ".join(f"DELETE FROM {table.name}" for table in tables)

    def empty(self) -> None:
        with psycopg.connect(_conninfo(self.url), autocommit=True) as connection:
            connection.execute(self._statements)


@contextmanager
def postgresql(
    *,
    durable: bool = False,
    parent: Path = Path("/tmp"),
    settings: Mapping[str, object] | None = None,
    tls: bool = False,
) -> Iterator[Postgresql]:
    """With `durable`, PostgreSQL keeps its defaults; otherwise it flushes nothing to disk. Its folder is in
    `parent`, and `settings` are further settings of PostgreSQL's. With `tls`, clients that use TCP check its
    certificate. Raises Missing.
    """
    programs = _postgresql_programs()
    # Short, because a socket's path may not be long, and where the server's user may go.
    with tempfile.TemporaryDirectory(prefix="tunefarm-pg-", dir=parent, ignore_cleanup_errors=True) as name:
        folder, user = Path(name), _unprivileged()
        if user:
            os.chown(folder, user["user"], user["group"])
        _initialize(programs, folder, user)
        if tls:
            _certify(folder, user)
        server = Postgresql(programs, folder, durable, settings or {}, tls, **user)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def redis_server() -> Iterator[Redis]:
    """Raises Missing."""
    program = shutil.which("redis-server")
    if program is None:
        raise Missing("Redis is not installed: apt-get install redis-server")
    with tempfile.TemporaryDirectory(prefix="tunefarm-redis-") as folder:
        server = Redis(program, Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def _postgresql_programs() -> Path:
    # Debian installs them outside the PATH, by version.
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    named = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    for folder in (*reversed(folders), *named):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise Missing("PostgreSQL is not installed: apt-get install postgresql")


def _unprivileged() -> Mapping[str, Any]:
    """For Popen: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _initialize(programs: Path, folder: Path, user: Mapping[str, Any]) -> None:
    secret = folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)  # its folder is inaccessible to other users
    command = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", "tunefarm", f"--pwfile={secret}"]
    cluster = ["--no-sync", "--encoding=UTF8", "--no-locale", "--auth=scram-sha-256"]
    done = subprocess.run([*command, *cluster], cwd=folder, capture_output=True, text=True, **user)
    assert done.returncode == 0, done.stderr


def _certify(folder: Path, user: Mapping[str, Any]) -> None:
    """Make a certificate for the address of a server, and the key that only the server may read."""
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    made.cert_chain_pems[0].write_to_path(folder / "server.pem")
    key = folder / "server.key"
    made.private_key_pem.write_to_path(key)
    key.chmod(0o600)
    if user:
        os.chown(key, user["user"], user["group"])


def _conninfo(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://")
