"""Compiled models: `tunefarm bench`, `tunefarm bundle`, and the download of a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from core.durations import latency_text
from core.exit_code import ExitCode
from core.measurement import NOISY
from system.command import CommandError
from tunefarm.cli.options import AsJson, checked_model, print_json, print_plain, stdout
from tunefarm.cli.remarks import remarks
from tunefarm.client.artifact import unpack
from tunefarm.errors import InputError

if TYPE_CHECKING:
    from tunefarm.comparison.contestants import Runtime
    from tunefarm.comparison.turns import Comparison, Row

RUNTIME = "tunefarm_runtime"

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that `tunefarm tune` has written.")]


def fetch_artifact(
    folder: Path, download: Callable[[Path], object], *, bundle: bool, weights: Path | None = None
) -> None:
    """Download an archive and unpack it into the folder, with its weights in the folder `weights` if given.

    Raises CommandError, and the exceptions of `download`.
    """
    archive = folder / ".artifact.tar"
    try:
        download(archive)
        unpack(archive, folder, bundle=bundle, weights=weights)
    except OSError as error:
        raise CommandError(f"{archive} can't be written ({error.strerror})", ExitCode.LOCAL) from error
    finally:
        archive.unlink(missing_ok=True)


def bench(
    folder: Folder,
    against: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="The model's file, for the runtimes that are installed here."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each runtime [the number that it was tuned for].")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long to measure.")] = 15.0,
    as_json: AsJson = False,
) -> None:
    """Time a compiled model in turns with other runtimes.

    These are the installed ones that run the model's file.
    """
    check_runtime()
    from tunefarm_runtime import LoadError

    from tunefarm.comparison.contestants import ContestantError, peers_of
    from tunefarm.comparison.turns import compare

    peers: list[Runtime] = []
    if against is not None:
        peers = peers_of(checked_model(against))
        if not peers:
            raise InputError(
                f"no runtime for {against} is installed here: pip install onnxruntime or openvino for ONNX, "
                "torch for .pt2"
            )
    try:
        with remarks().status("loading") as status:
            result = compare(folder, peers, threads, seconds, status.update)
    except LoadError as error:
        raise InputError(str(error)) from error
    except ContestantError as error:
        raise CommandError(str(error), ExitCode.LOCAL) from error
    if as_json:
        print_json(result.as_json())
    else:
        _print(result)


def _print(result: Comparison) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("runtime")
    titles = ["median", "p10 to p90", "latency / tunefarm's", "load", "peak memory", "on disk"]
    if result.rows[0].joules:
        titles.append("energy of a call")
    for title in titles:
        table.add_column(title, justify="right")
    for row in result.rows:
        if row.error:
            table.add_row(row.name, "-")
            continue
        spread = f"{latency_text(row.p10_s)} to {latency_text(row.p90_s)}"
        is_own = row is result.rows[0]
        ratio = "" if is_own else f"{row.ratio:.2f} ({row.ratio_p10:.2f} to {row.ratio_p90:.2f})"
        costs = [f"{size / 1e6:.1f} MB" for size in (row.peak_bytes, row.disk_bytes)]
        if result.rows[0].joules:
            costs.append(f"{row.joules * 1e3:.3g} mJ")
        table.add_row(row.name, latency_text(row.median_s), spread, ratio, latency_text(row.load_s), *costs)
    console = stdout()
    console.print(table)
    for row in result.rows:
        if row.error:
            console.print(f"{row.error}", markup=False, highlight=False)
    console.print(f"{result.threads} threads, {result.rounds} rounds in turns", highlight=False)
    peers = [row for row in result.rows[1:] if not row.error]
    if peers:
        fastest = min(peers, key=lambda row: row.ratio)
        console.print(verdict(fastest), highlight=False)


def verdict(fastest: Row) -> str:
    """Return one sentence on the latency of the fastest peer, divided by the compiled model's, and whether it
    can be trusted.
    """
    if fastest.ratio >= 1:
        text = f"{fastest.ratio:.2f} times as fast as {fastest.name}, the fastest other runtime here"
    else:
        slower = f"{1 / fastest.ratio:.2f} times its latency"
        text = f"slower than {fastest.name}, the fastest other runtime here: {slower}"
    if max(fastest.ratio_p90 / fastest.ratio, fastest.ratio / fastest.ratio_p10) <= 1 + NOISY:
        return text
    spread = f"{fastest.ratio_p10:.2f} to {fastest.ratio_p90:.2f}"
    return f"{text} (noisy: {spread} in 80% of the rounds; measure again while nothing else runs)"


def bundle(
    folder: Folder,
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="A new folder for the bundle.")],
    as_json: AsJson = False,
) -> None:
    """Write a folder that runs a compiled model from C or C++, with everything that it needs."""
    check_runtime()
    from tunefarm_runtime import LoadError
    from tunefarm_runtime.bundle import make_bundle

    try:
        make_bundle(folder, output)
    except LoadError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise CommandError(
            f"the bundle can't be written: {error.filename or output} ({error.strerror})", ExitCode.LOCAL
        ) from error
    build = f"cmake -S {output} -B {output}/build && cmake --build {output}/build"
    if as_json:
        print_json({"bundle": str(output), "build": build})
    else:
        print_plain(f"bundle    {output}\nbuild     {build}")


def check_runtime() -> None:
    """Raise CommandError where the package that runs compiled models is missing.

    It is imported only where it is needed, so that other commands start without NumPy.
    """
    if importlib.util.find_spec(RUNTIME) is None:
        raise CommandError(
            "the package tunefarm-runtime is missing: pip install tunefarm-runtime", ExitCode.LOCAL
        )
