"""`tunefarm model`: the accuracy of the learned cost models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from core.durations import latency_text
from tunefarm.cli.options import AsJson, Data, Server, Token, opened, print_json, stdout
from tunefarm.client.values import CostModelReport

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
        stdout().print(_table(reports))
        stdout().print(LEGEND, markup=False, highlight=False, style="dim")
    else:
        stdout().print("no cost model was trained yet: that begins with the first trials, tune a model")


def _table(reports: Sequence[CostModelReport]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("device", "class", "trained", "versions", "records", "training", "in all", "held out"):
        table.add_column(title)
    for title in ("R2", "pairs", "recall@30"):
        table.add_column(title, no_wrap=True)
    for report in reports:
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
        table.add_row(
            escape(report.device_name),
            report.device_class,
            datetime.fromtimestamp(report.created_at).isoformat(" ", "seconds"),
            str(report.versions),
            str(report.records),
            latency_text(report.train_s),
            latency_text(report.total_train_s),
            *accuracy,
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
