"""`tunefarm up`, `server`, `scheduler` and `worker`: the service's processes, all of them or one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from system.packages import python_path
from tunefarm.cli.options import (
    AsJson,
    Data,
    Features,
    Threads,
    Token,
    checked_features,
    print_json,
    print_plain,
)
from tunefarm.cli.remarks import say
from tunefarm.client.client import Client
from tunefarm.embedded.service import StackMonitor
from tunefarm.settings import load

# Settings of commands whose arguments another process parses.
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def up(
    host: Annotated[str | None, typer.Option(help="The address to listen on [127.0.0.1].")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="For HTTP [8760]; 0: any free one.")
    ] = None,
    grpc_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="For workers [8761]; 0: any free one.")
    ] = None,
    threads: Threads = None,
    features: Features = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Run the whole service here: server, scheduler and one worker. Ctrl-C stops it; jobs go on next time."""
    from tunefarm.embedded import stack

    settings = load(host=host, port=port, grpc_port=grpc_port, threads=threads, token=token, data=data)
    config = stack.StackConfig(
        settings.data,
        settings.host,
        settings.port,
        settings.grpc_port,
        settings.secret,
        settings.threads,
        lasting=True,
        features=checked_features(features),
        tls=settings.server_tls,
        trust=settings.tls,
    )
    try:
        with stack.start(config) as started:
            running, folder = started.running, started.folder.path
            if as_json:
                addresses = {"url": running.url, "workers": running.workers_address}
                print_json(addresses | {"data": str(folder), "pid": os.getpid()})
            else:
                print_plain(
                    f"tunefarm is up at {running.url}\n"
                    f"  workers connect to {running.workers_address}\n"
                    f"  data and logs are in {folder}\n"
                    "  Ctrl-C stops it"
                )
            monitor = StackMonitor(started, Client(running.url, settings.secret, tls=settings.tls))
            said: dict[str, str] = {}
            while True:
                started.check()
                unable = {worker.id: worker.unable for worker in monitor.workers() if worker.unable}
                for name, why in unable.items() - said.items():
                    say(f"worker {name} {why}")
                said = unable
                time.sleep(1.0)
    except KeyboardInterrupt:
        say("stopped")


def server(context: typer.Context) -> None:
    """Run the HTTP and gRPC server alone. `tunefarm server --help` shows its options."""
    _execute("server", context.args)


def scheduler(context: typer.Context) -> None:
    """Run a scheduler alone."""
    _execute("scheduler", context.args)


def worker(context: typer.Context) -> None:
    """Run a worker on this device.

    For example `tunefarm worker --server HOST:PORT --token TOKEN`.
    """
    _execute("worker", context.args)


def _execute(package: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by `python -m PACKAGE`."""
    # with -P, a folder of the same name in the working directory isn't imported
    environment = os.environ | {"PYTHONPATH": python_path(os.environ)}
    os.execve(sys.executable, [sys.executable, "-P", "-m", package, *arguments], environment)
