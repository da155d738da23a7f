"""`tunefarm.tune`: tune a model from Python, and write a folder with its compiled library."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunefarm.cli.tune import TuneResult


def tune(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    target: str = "native",
    output: Path | None = None,
    server: str | None = None,
    token: str | None = None,
    data: Path | None = None,
    **options: Any,
) -> TuneResult:
    """Tune a model and write a compiled library into `output`, as `tunefarm tune` does with the same options.

    `model` is the path of a model's file, a torch.nn.Module (exported with `example_inputs`), or a
    torch.export.ExportedProgram. It may also be TVM's IRModule, a TIR function, or a list of tensor
    expressions, inputs before outputs. Like --shape, `shapes` have the shapes of inputs, or the sizes of
    dimensions, for which the result has `sizes`. `options` are fields of `core.job.JobOptions`, such as
    `exact`. Raises TypeError for anything else, ValueError for an option outside its limits, CommandError
    when the job fails, and ClientError.
    """
    from core.job import MAX_TRIALS
    from tunefarm.cli.follow import require_done
    from tunefarm.cli.tune import DEFAULT_TRIALS, Tuning, run_job
    from tunefarm.client.values import JobRequest
    from tunefarm.settings import load

    request = JobRequest(
        model="",  # known once the file is uploaded
        trials=trials or (DEFAULT_TRIALS if minutes is None else MAX_TRIALS),
        shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
        target=target,
        minutes=minutes,
        **options,
    )
    with _file(model, example_inputs) as path:
        settings = load(server=server, token=token, data=data)
        jobs, results = run_job(Tuning([path], request, output), settings)
    for job in jobs:
        require_done(job)
    if len(results) == 1:
        return results[0]
    return replace(results[0], output=results[0].output.parent, sizes=tuple(results))


@contextmanager
def _file(model: Any, example_inputs: Sequence[Any] | None) -> Iterator[Path]:
    """Yield a file with the model. It is deleted at the end unless it is the user's own."""
    if isinstance(model, str | Path):
        yield Path(model)
        return
    with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
        # A program with an object of PyTorch or TVM has imported that package.
        torch, tvm = sys.modules.get("torch"), sys.modules.get("tvm")
        if torch is not None and isinstance(model, torch.nn.Module):
            if example_inputs is None:
                raise TypeError(
                    "a torch.nn.Module is exported with example inputs: tune(module, (tensor, ...))"
                )
            if model.training:
                raise ValueError(
                    "the module is in training mode, in which layers compute differently: call eval()"
                )
            path = Path(folder, f"{_name(type(model).__name__)}.pt2")
            torch.export.save(torch.export.export(model, tuple(example_inputs)), path)
        elif torch is not None and isinstance(model, torch.export.ExportedProgram):
            path = Path(folder, "program.pt2")
            torch.export.save(model, path)
        elif tvm is not None and _is_of_tvm(tvm, model):
            from compiler.importing.formats.tvm_module import to_json

            path = Path(folder, "module.json")
            path.write_text(to_json(model))
        else:
            raise TypeError(
                f"a {type(model).__name__} is no model: give a file, a torch.nn.Module, an exported program, "
                "an IRModule, a TIR function or a list of tensor expressions"
            )
        yield path


def _is_of_tvm(tvm: Any, model: Any) -> bool:
    if isinstance(model, list | tuple):
        return bool(model) and all(isinstance(tensor, tvm.te.Tensor) for tensor in model)
    return isinstance(model, tvm.IRModule | tvm.tirx.PrimFunc)


def _name(text: str) -> str:
    return re.sub(r"\W", "", text).lower() or "module"
