"""`tunefarm workers` and `calibrate`: list and reserve workers, and set their desired states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from core.durations import duration_text
from core.exit_code import ExitCode
from system.command import CommandError
from tunefarm.cli.completion import worker_names
from tunefarm.cli.fitted import Column, FittedTable
from tunefarm.cli.live import IsLive, show_live
from tunefarm.cli.options import (
    AsJson,
    Data,
    Server,
    Token,
    connected,
    print_json,
    print_plain,
    stdout,
    time_text,
)
from tunefarm.client.client import Client
from tunefarm.client.values import DeviceClass, Worker

app = typer.Typer(
    help="List workers; drain, resume, evict, update or reserve one.",
    rich_markup_mode=None,
    invoke_without_command=True,
)

COLUMNS = (
    Column("name", text=True),
    Column("state"),
    Column("device", rank=3, text=True),
    Column("class", rank=8),
    Column.number("cores", rank=7),
    Column.number("load", rank=6),
    Column.number("temp", rank=5),
    Column.number("trials/min", rank=1),
    Column.number("trials", rank=4),
    Column("failed", rank=9, text=True),
    Column("seen", rank=10),
    Column("does", text=True, least=24),
)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="As `tunefarm workers` shows it.", autocompletion=worker_names),
]


@app.callback()
def list_(
    context: typer.Context,
    live: IsLive = False,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List workers; drain, resume, evict, update or reserve one."""
    if context.invoked_subcommand is not None:
        if live or server or token or data or as_json:
            asked = f"tunefarm workers {context.invoked_subcommand} NAME"
            raise CommandError(f"options come after the name: {asked} --server URL", ExitCode.USAGE)
        return
    with connected(server, token, data) as service:
        if live:
            show_live(lambda: worker_table(service.client.workers()))
            return
        workers = service.client.workers()
        classes = {one.key: one for one in service.client.device_classes()}
    if as_json:
        profiles: dict[str | None, Any] = {key: one.profile for key, one in classes.items()}
        print_json([asdict(one) | {"profile": profiles.get(one.device_class)} for one in workers])
    elif workers:
        worker_table(workers).print(stdout())
        for key in dict.fromkeys(worker.device_class for worker in workers):
            if key in classes:
                print_plain(f"class {key}, {classes[key].name}: {_speeds(classes[key])}")
        for worker in workers:
            for note in _notes(worker):
                print_plain(f"{worker.id}{note}")
    else:
        stdout().print("no worker has connected yet: start one with `tunefarm worker --server HOST:PORT`")


def _notes(worker: Worker) -> Iterator[str]:
    """Yield what people should know about a worker, as continuations of its name."""
    if worker.unable and _state(worker) == "connected":
        yield f" {worker.unable}"
    if worker.reserved_for is not None:
        yield f" is {_reservation(worker)}"
    if worker.shares_with:
        others = " and ".join(worker.shares_with)
        yield (
            f" measures in turns with {others}, on the same hardware: stop one, "
            "or give each its own cores with taskset"
        )
    if worker.other_version:
        is_due = worker.desired_state == "update"
        remedy = "is to be updated" if is_due else f"`tunefarm workers update {worker.id}`"
        yield f" has another version than the service, {worker.tunefarm_version}: {remedy}"
    if worker.sandbox_gaps:
        yield f": {worker.sandbox_gaps}"


def _instruct(act: Callable[[Client, str], Worker], help_text: str, done: str) -> Callable[..., None]:
    """Return a command that gives a worker an instruction. It prints the worker's name followed by `done`."""

    def instruct(
        name: Name, server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False
    ) -> None:
        with connected(server, token, data) as service:
            worker = act(service.client, name)
        if as_json:
            print_json(asdict(worker))
        else:
            print_plain(f"{name} {done}")

    instruct.__doc__ = help_text
    return instruct


app.command("drain")(
    _instruct(
        Client.drain,
        "Let a worker finish its lease and take no other.",
        "finishes its lease and takes no other",
    )
)
app.command("resume")(_instruct(Client.resume, "Let a drained or evicted worker work again.", "may work"))
app.command("evict")(
    _instruct(
        Client.evict,
        "End a worker's lease, and refuse its name.",
        "has lost its lease and is refused until it is resumed",
    )
)
app.command("update")(
    _instruct(
        Client.update,
        """Let a worker finish its lease and update tunefarm.

        The worker does so only where its owner allows it.
        """,
        "finishes its lease and is updated, if its owner lets the service",
    )
)
calibrate = _instruct(
    Client.calibrate,
    "Let a worker measure its device's speeds again, once it holds no lease.",
    "measures its device's speeds once it holds no lease",
)


@app.command("reserve")
def reserve(
    name: Name,
    minutes: Annotated[float, typer.Option(metavar="M", help="How long; a week at most.")] = 60.0,
    holder: Annotated[
        str | None,
        typer.Option("--for", metavar="TOKEN", help="Another token's name or id."),
    ] = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Let a worker measure only the jobs of one token for a while.

    It finishes its lease first. Other jobs wait, and say so.
    """
    with connected(server, token, data) as service:
        worker = service.client.reserve(name, minutes, holder)
    if as_json:
        print_json(asdict(worker))
    else:
        print_plain(f"{name} is {_reservation(worker)}; `tunefarm workers unreserve {name}` ends that")


app.command("unreserve")(
    _instruct(Client.unreserve, "End a worker's reservation.", "measures the jobs of all tokens")
)


def _reservation(worker: Worker) -> str:
    until = "" if worker.reserved_until is None else f" until {time_text(worker.reserved_until)}"
    return f"reserved for {worker.reserved_for}{until}"


def _speeds(device_class: DeviceClass) -> str:
    """Describe a calibration in one line. A ~ precedes derived values."""
    profile = device_class.profile
    if profile is None:
        return "not calibrated, an ordinary core is assumed"

    def number(field: str, value: float, form: str = ".0f") -> str:
        return f"{'~' if field in profile['derived'] else ''}{value:{form}}"

    multiply_adds = number("multiply_adds", profile["multiply_adds"]["float32"], ".2g")
    levels = (("L1", "l1_rate"), ("L2", "l2_rate"), ("L3", "l3_rate"), ("memory", "memory_rate"))
    rates = " / ".join(f"{level} {number(field, profile[field])}" for level, field in levels)
    parts = (
        f"{number('hertz', profile['hertz'] / 1e9, '.1f')} GHz",
        f"{multiply_adds} x {8 * device_class.vector_bytes}-bit multiply-adds",
        f"{profile['registers']} registers",
        f"{rates} B/cycle",
        f"launch {number('launch_s', profile['launch_s'] * 1e6, '.2g')} us",
    )
    return ", ".join(parts)


def worker_table(workers: Sequence[Worker]) -> FittedTable:
    """Return a table of workers."""
    return FittedTable(COLUMNS, [_cells(worker) for worker in workers])


def _cells(worker: Worker) -> tuple[str, ...]:
    device = worker.device_name or "-"
    if worker.role == "build":
        device = f"builds for {', '.join(worker.builds_for)}"
    seen_ago_s = worker.last_seen_ago_s
    return (
        worker.id,
        _state(worker),
        device,
        worker.device_class or "-",
        _number(worker.cores, ".0f"),
        _number(worker.load, ".1f"),
        _number(worker.temperature_c, ".0f", " °C"),
        _number(worker.trials_per_minute, ".1f"),
        str(worker.trials_done),
        _failures(worker),
        "-" if seen_ago_s is None else f"{duration_text(seen_ago_s)} ago",
        _activity(worker),
    )


def _state(worker: Worker) -> str:
    if worker.desired_state == "evicted":
        return "evicted"
    if worker.state == "offline":
        return "away"
    return "connected" if worker.connected else "lost"


def _activity(worker: Worker) -> str:
    """Describe the worker's last reported activity."""
    if _state(worker) != "connected":
        return "-"
    if worker.health_error:
        return "can't build" if worker.role == "build" else "can't measure"
    drains = worker.desired_state in ("drain", "update")
    if worker.calibrate and worker.state == "probing":
        return "calibrates"
    if worker.lease is not None:
        done, of = worker.candidates_done, worker.candidates
        count = "" if done is None or of is None else f": {done} of {of}"
        return f"{'drains, ' if drains else ''}lease {worker.lease[:8]}{count}"
    activities = {"probing": "probes the device", "ready": "waits for work", "draining": "stops"}
    return "drained" if drains else activities.get(worker.state, worker.state)


def _failures(worker: Worker) -> str:
    """Return the number of failures, then the number of each kind, the most frequent first."""
    kinds = sorted(worker.failures_by_kind.items(), key=lambda pair: (-pair[1], pair[0]))
    named = ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in kinds)
    return f"{worker.failures} ({named})" if named else str(worker.failures)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"
