"""Build the next batch of candidates in one child while another child measures the current batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from core.lease import Candidate, Limits
from core.measurement import Measurement, Outcome
from worker.runner.executor import Executor
from worker.runner.interface import BuildRequest

Batch: TypeAlias = Sequence[tuple[Candidate, BuildRequest]]
# Each candidate's request, or its failure if it failed to build.
BuiltBatch: TypeAlias = Sequence[tuple[Candidate, BuildRequest | Measurement]]


async def build_ahead(
    builder: Executor, batches: Sequence[Batch], limits: Limits, folder: Path
) -> AsyncGenerator[BuiltBatch]:
    """Yield each batch once `builder` has put its libraries into `folder`.

    The next batch is built while the caller works on the yielded one. Raises ChildStartError.
    """
    if not batches:
        return
    building = asyncio.create_task(_build(builder, batches[0], limits, folder))
    try:
        for following in (*batches[1:], None):
            built = await building
            if following is not None:
                building = asyncio.create_task(_build(builder, following, limits, folder))
            yield built
    finally:
        building.cancel()
        await asyncio.gather(building, return_exceptions=True)


async def _build(builder: Executor, batch: Batch, limits: Limits, folder: Path) -> BuiltBatch:
    exports = [replace(request, export=True) for _, request in batch if request.library is None]
    built: list[tuple[Candidate, BuildRequest | Measurement]] = []
    for candidate, request in batch:
        if request.library is not None:  # another worker, a builder, has built it
            built.append((candidate, request))
            continue
        export, *exports = exports
        exported = await builder.export(export, limits, exports)
        if isinstance(exported, Measurement):
            built.append((candidate, exported))
            continue
        library = folder / str(candidate.trial_id)
        try:
            await asyncio.to_thread(library.write_bytes, exported.data)
        except OSError as error:
            lost = Measurement(Outcome.UNKNOWN, error=f"its library could not be kept: {error}")
            built.append((candidate, lost))
        else:
            built.append((candidate, replace(request, library=str(library))))
    return built
