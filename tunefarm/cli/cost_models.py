"""`tunefarm model`: the accuracy of the learned cost models."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from core.durations import latency_text
from tunefarm.cli.fitted import Column, FittedTable
from tunefarm.cli.options import AsJson, Data, Server, Token, opened, print_json, stdout
from tunefarm.client.values import CostModelReport

COLUMNS = (
    Column("device", text=True),
    Column("class", rank=3),
    Column("trained", rank=4),
    Column.number("versions", rank=5),
    Column.number("records", rank=1),
    Column.number("training", rank=7),
    Column.number("in all", rank=8),
    Column.number("held out", rank=6),
    Column("R2"),
    Column("pairs"),
    Column("recall@30", rank=2),
)
LEGEND = (
    "learned / analytic, on records held out: R2 of throughput relative to the task's best, pairs in the "
    "right order, the 30 fastest found among the 30 predicted"
)


def model(
    device: Annotated[
        str | None, typer.Option("--device", metavar="CLASS", help="Only of this device class.")
    ] = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show the accuracy of the learned cost model of each device class."""
    with opened(server, token, data) as service:
        reports = service.client.cost_models(device)
    if as_json:
        print_json([asdict(report) for report in reports])
    elif reports:
        FittedTable(COLUMNS, list(map(_cells, reports))).print(stdout())
        stdout().print(LEGEND, markup=False, highlight=False, style="dim")
    else:
        stdout().print("no cost model was trained yet: that begins with the first trials, tune a model")


def _cells(report: CostModelReport) -> tuple[str, ...]:
    held_out = report.metrics
    accuracy = ["-"] * 4
    if held_out is not None:
        learned, analytic = held_out.learned, held_out.analytic
        accuracy = [
            str(learned.records),
            f"{_number(learned.r2)} / {_number(analytic.r2)}",
            f"{_number(learned.pairwise)} / {_number(analytic.pairwise)}",
            f"{_number(learned.recall)} / {_number(analytic.recall)}",
        ]
    return (
        report.device_name,
        report.device_class,
        datetime.fromtimestamp(report.created_at).isoformat(" ", "seconds"),
        str(report.versions),
        str(report.records),
        latency_text(report.train_s),
        latency_text(report.total_train_s),
        *accuracy,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
