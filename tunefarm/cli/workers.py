"""`tunefarm workers`: the devices that measure, and what they are wanted to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from core.durations import duration_text
from core.exit_code import ExitCode
from system.command import CommandError
from tunefarm.cli.options import AsJson, Data, Server, Token, print_json, running, stdout
from tunefarm.client.client import Client
from tunefarm.client.values import DeviceClass, Worker
from tunefarm.embedded.service import Service

app = typer.Typer(
    help="List the workers and their devices; drain, resume or evict one.",
    rich_markup_mode=None,
    invoke_without_command=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="As `tunefarm workers` shows it.")]


@app.callback()
def list_(
    context: typer.Context,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List the workers and their devices; drain, resume or evict one."""
    if context.invoked_subcommand is not None:
        if server or token or data or as_json:
            asked = f"tunefarm workers {context.invoked_subcommand} NAME"
            raise CommandError(f"options come after the name: {asked} --server URL", ExitCode.USAGE)
        return
    with running(server, token, data) as found:
        known = found.client.workers()
        classes = {one.key: one for one in found.client.device_classes()}
    if as_json:
        profiles: dict[str | None, Any] = {key: one.profile for key, one in classes.items()}
        print_json([asdict(one) | {"profile": profiles.get(one.device_class)} for one in known])
    elif known:
        stdout().print(table(known))
        for key in dict.fromkeys(one.device_class for one in known):
            if key in classes:
                said = f"class {key}: {speeds(classes[key])}"
                stdout().print(said, markup=False, highlight=False, soft_wrap=True)
        for one in known:
            if one.unable and _state(one) == "connected":
                stdout().print(f"{one.id} {one.unable}", markup=False, highlight=False, soft_wrap=True)
            if one.uncontained:
                stdout().print(f"{one.id}: {one.uncontained}", markup=False, highlight=False, soft_wrap=True)
    else:
        stdout().print("no worker was here yet: start one with `tunefarm worker --server HOST:PORT`")


@app.command()
def drain(
    name: Name, server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Have a worker finish its lease and take no other, until it is resumed."""
    with running(server, token, data) as found:
        _act(found, Client.drain, name, "finishes its lease and takes no other", as_json)


@app.command()
def resume(
    name: Name, server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Have a worker that was drained or evicted work again."""
    with running(server, token, data) as found:
        _act(found, Client.resume, name, "may work", as_json)


@app.command()
def evict(
    name: Name, server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Take a worker's lease away at once, and let nobody in under its name until it is resumed."""
    with running(server, token, data) as found:
        _act(found, Client.evict, name, "has lost its lease and is not let in until resumed", as_json)


def calibrate(
    name: Name, server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Have a worker measure again what its device can do, as soon as it holds no lease."""
    with running(server, token, data) as found:
        _act(found, Client.calibrate, name, "measures its device's profile once it holds no lease", as_json)


def speeds(one: DeviceClass) -> str:
    """For people: what its calibration measured, in a line; a ~ before what only follows from the rest."""
    profile = one.profile
    if profile is None:
        return "not calibrated, an ordinary core is assumed"

    def said(field: str, value: float, form: str = "{:.0f}") -> str:
        return ("~" if field in profile["derived"] else "") + form.format(value)

    multiply_adds = said("multiply_adds", profile["multiply_adds"]["float32"], "{:.2g}")
    levels = (("L1", "l1_rate"), ("L2", "l2_rate"), ("L3", "l3_rate"), ("memory", "memory_rate"))
    rates = " / ".join(f"{level} {said(field, profile[field])}" for level, field in levels)
    parts = (
        f"{said('hertz', profile['hertz'] / 1e9, '{:.1f}')} GHz",
        f"{multiply_adds} x {8 * one.vector_bytes}-bit multiply-adds",
        f"{profile['registers']} registers",
        f"{rates} B/cycle",
        f"launch {said('launch_s', profile['launch_s'] * 1e6, '{:.2g}')} us",
    )
    return ", ".join(parts)


def table(workers: Sequence[Worker]) -> Table:
    """For people: a line for each worker."""
    made = Table(box=None, pad_edge=False)
    for title in ("name", "state", "device", "class"):
        made.add_column(title)
    for title in ("cores", "load", "temp", "trials/min", "trials"):
        made.add_column(title, justify="right")
    for title in ("failed", "seen", "does"):
        made.add_column(title)
    for one in workers:
        device = _device(one), one.device_class or "-", _number(one.cores, ".0f")
        vitals = _number(one.load, ".1f"), _number(one.temperature_c, ".0f", " °C")
        counts = _number(one.trials_per_minute, ".1f"), str(one.trials_done), _failures(one)
        cells = (one.id, _state(one), *device, *vitals, *counts, _seen(one), _does(one))
        made.add_row(*map(escape, cells))
    return made


def _act(
    found: Service, action: Callable[[Client, str], Worker], name: str, said: str, as_json: bool
) -> None:
    worker = action(found.client, name)
    if as_json:
        print_json(asdict(worker))
    else:
        stdout().print(f"{name} {said}", markup=False, highlight=False, soft_wrap=True)


def _state(worker: Worker) -> str:
    if worker.wanted == "evicted":
        return "evicted"
    if worker.state == "offline":
        return "away"
    return "connected" if worker.connected else "lost"


def _device(worker: Worker) -> str:
    if worker.role == "build":
        return f"builds for {', '.join(worker.builds_for)}"
    return worker.device_name or "-"


def _does(worker: Worker) -> str:
    """What it said last that it does."""
    if _state(worker) != "connected":
        return "-"
    if worker.trouble:
        return "can't build" if worker.role == "build" else "can't measure"
    drains = worker.wanted == "drain"
    if worker.calibrate and worker.state == "probing":
        return "calibrates"
    if worker.lease is not None:
        done, of = worker.candidates_done, worker.candidates
        count = "" if done is None or of is None else f": {done} of {of}"
        return f"{'drains, ' if drains else ''}lease {worker.lease[:8]}{count}"
    said = {"probing": "probes the device", "ready": "waits for work", "draining": "stops"}
    return "drained" if drains else said.get(worker.state, worker.state)


def _failures(worker: Worker) -> str:
    """How many, and of which kinds, the most frequent first."""
    kinds = sorted(worker.failures_by_kind.items(), key=lambda pair: (-pair[1], pair[0]))
    named = ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in kinds)
    return f"{worker.failures} ({named})" if named else str(worker.failures)


def _seen(worker: Worker) -> str:
    return "-" if worker.last_seen_ago_s is None else f"{duration_text(worker.last_seen_ago_s)} ago"


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"
