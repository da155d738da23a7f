"""`tunefarm verify`: check a compiled model's signature, and compare it with the model that it was compiled
from."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from core.exit_code import ExitCode
from core.library_weights import WeightsError, open_whole
from system.command import CommandError
from tunefarm.cli.compiled import check_runtime
from tunefarm.cli.options import AsJson, checked_model, checked_npz, print_json, print_plain, stdout
from tunefarm.cli.remarks import say
from tunefarm.client.artifact import QUANTIZED
from tunefarm.client.metaschedule_files import load_compiler
from tunefarm.client.model_files import ModelFiles
from tunefarm.errors import InputError

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="A compiled model, as `tunefarm tune` writes it.")
]
Against = Annotated[
    Path | None, typer.Option("--against", metavar="MODEL", help="The model that it was compiled from.")
]
Trusted = Annotated[
    list[str] | None,
    typer.Option("--trusted", metavar="KEY", help="A trusted key, as `tunefarm release key` prints it."),
]
Inputs = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE.npz", help="Inputs of your own, arrays by the inputs' names."),
]


def verify(
    folder: Folder,
    against: Against = None,
    trusted: Trusted = None,
    inputs: Inputs = None,
    as_json: AsJson = False,
) -> None:
    """Check who signed a compiled model, and compare it with its model on random inputs, edge values and your
    own.

    The comparison runs the library: in a sandbox, or for a GPU in this process with your rights. Exit code 0
    means that the signature is right and all outputs agree, 3 that something differs.
    """
    if against is None and not trusted:
        raise CommandError(
            "nothing to verify with: give --against MODEL, --trusted KEY or both", ExitCode.USAGE
        )
    if inputs is not None and against is None:
        raise CommandError("--inputs needs --against MODEL: nothing else runs them", ExitCode.USAGE)
    parts = _parts(folder)
    signed: dict[str, bytes] = {}
    if trusted:
        signed = {name: _check_signature(part, trusted) for name, part in parts.items()}
    if against is None:
        if as_json:
            print_json({"folder": str(folder), "signed": True})
        else:
            print_plain(f"{folder} is signed by a trusted key")
        return
    checked_model(against)
    own = _read_inputs(inputs) if inputs is not None else {}
    rows = []
    with _packed(against) as model:
        for name, part in parts.items():
            rows += [{"size": name, **row} for row in _compare(part, model, own, signed.get(name))]
    agrees = not any(row["wrong"] for row in rows)
    if own and not any(row["inputs"] == "your inputs" for row in rows):
        raise InputError(f"{inputs} has the inputs of no size in {folder}: check names, shapes and types")
    if as_json:
        found = {"folder": str(folder), "model": str(against), "agrees": agrees, "checks": rows}
        print_json(found | ({"signed": True} if trusted else {}))
    else:
        stdout().print(_table(rows, len(parts) > 1))
    if not agrees:
        hint = "see above"
        if any(
            json.loads((part / "manifest.json").read_text()).get("quantization") for part in parts.values()
        ):
            hint = f"the service quantized the model, so compare with {QUANTIZED} beside the library"
        raise CommandError(f"the outputs of {folder} differ from {against}: {hint}", ExitCode.BAD_INPUT)


def _parts(folder: Path) -> dict[str, Path]:
    """Return the folders with a library, by the name of the size; "" if there is only one."""
    if (folder / "manifest.json").exists():
        return {"": folder}
    found = {file.parent.name: file.parent for file in sorted(folder.glob("*/manifest.json"))}
    if not found:
        raise InputError(f"{folder} holds no compiled model: name a folder that tunefarm has written")
    return found


def _check_signature(folder: Path, trusted: Sequence[str]) -> bytes:
    """Return the manifest of a compiled model. Raises InputError unless one of the keys has signed every file
    of it."""
    check_runtime()
    from tunefarm_runtime.errors import LoadError
    from tunefarm_runtime.signature import check_folder

    try:
        return check_folder(folder, trusted)
    except LoadError as error:
        raise InputError(str(error)) from error


def _packed(model: Path) -> IO[bytes]:
    """Return a file with the model as it would be uploaded, including its weights' files."""
    packed = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        for chunk in ModelFiles.of(model).chunks():
            packed.write(chunk)
    except ValueError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{error.filename}, of the model, can't be read ({error.strerror})") from error
    packed.flush()
    return packed


def _read_inputs(file: Path) -> dict[str, Any]:
    import numpy as np

    try:
        with np.load(checked_npz(file), allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} can't be read as .npz: {error}") from error


@contextmanager
def _signed_copy(folder: Path, library: IO[bytes], manifest: Any) -> Iterator[IO[bytes]]:
    """Yield a copy of a library, which nobody can change. Raises InputError if it isn't the signed one."""
    digest = hashlib.sha256()
    with tempfile.TemporaryFile() as copy:
        while chunk := library.read(1 << 20):
            digest.update(chunk)
            copy.write(chunk)
        if digest.hexdigest() != manifest.library_sha256:
            raise InputError(f"the library in {folder} was changed after its signature was checked")
        copy.flush()
        copy.seek(0)
        yield copy


def _compare(
    folder: Path, model: IO[bytes], own: Mapping[str, Any], signed: bytes | None
) -> list[dict[str, str]]:
    """Compare a library's outputs with the model's. `signed` is the manifest if its signature was checked."""
    artifact = load_compiler("compiler.packaging.artifact")
    spec = load_compiler("compiler.importing.spec")
    library_check = load_compiler("compiler.children.library_check")
    try:
        text = (folder / artifact.MANIFEST).read_bytes() if signed is None else signed
        manifest = artifact.Manifest.from_json(text.decode())
        with ExitStack() as files:
            library = files.enter_context(open_whole(folder / artifact.LIBRARY))
            if signed is not None:
                library = files.enter_context(_signed_copy(folder, library, manifest))
            given = [own] if _fits(manifest.inputs, own) else []
            if '"cuda"' in manifest.target:
                say("the library of a GPU runs in this process, with your rights")
                checks = list(library_check.check_here(model, library, manifest, given))
            else:
                checks = library_check.check_library(model, library, manifest, given)
    except OSError as error:
        raise InputError(f"{error.filename} can't be read ({error.strerror})") from error
    except (artifact.ArtifactError, WeightsError) as error:
        raise InputError(f"{folder}: {error}") from error
    except spec.ModelError as error:
        raise InputError(f"the library can't be compared with the model: {error}") from error
    except spec.NoReference as error:
        raise CommandError(
            f"nothing here can run the model to compare with: {error}", ExitCode.LOCAL
        ) from error
    return [{"inputs": check.inputs, "wrong": check.wrong, "note": check.note} for check in checks]


def _fits(specs: Any, own: Mapping[str, Any]) -> bool:
    return bool(own) and {name: (array.shape, str(array.dtype)) for name, array in own.items()} == {
        spec.name: (spec.shape, spec.dtype) for spec in specs
    }


def _table(rows: list[dict[str, str]], has_sizes: bool) -> Table:
    table = Table(box=None)
    for name in [*(["size"] if has_sizes else []), "inputs", "outputs"]:
        table.add_column(name)
    for row in rows:
        note = f"agree, except where the standard leaves it open ({row['note']})" if row["note"] else "agree"
        result = f"differ: {row['wrong']}" if row["wrong"] else note
        cells = (*([row["size"]] if has_sizes else []), row["inputs"], result)
        table.add_row(*map(escape, cells))
    return table
