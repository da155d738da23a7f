"""The versions of each device class's cost model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from records.fleet import devices
from records.storage.tables import CostModelRow

# Older versions stay listed, without their bytes.
KEPT = 10


@dataclass(frozen=True)
class Version:
    """One training: on how many `records`, of which the newest was stored at `newest_record_at`, finished at
    `created_at` after `train_secs` seconds. `metrics` are of records held out, None when none were."""

    device_class: str
    records: int
    newest_record_at: float
    created_at: float
    train_secs: float
    metrics: dict[str, Any] | None


_COLUMNS = [getattr(CostModelRow, name) for name in Version.__dataclass_fields__]


def add(session: Session, version: Version, model: bytes) -> None:
    """Store a version with its bytes, and drop those of all but the class's newest KEPT.

    Raises DeviceClassNotFound.
    """
    devices.get_class(session, version.device_class)
    session.execute(insert(CostModelRow).values(asdict(version) | {"model": model}))
    of_class = CostModelRow.device_class == version.device_class
    kept = select(CostModelRow.id).where(of_class).order_by(CostModelRow.id.desc()).limit(KEPT)
    old = (of_class, CostModelRow.model.is_not(None), CostModelRow.id.not_in(kept.scalar_subquery()))
    session.execute(update(CostModelRow).where(*old).values(model=None))


def newest(session: Session, device_class: str) -> tuple[Version, bytes] | None:
    """The class's newest version with its bytes."""
    stored = (CostModelRow.device_class == device_class, CostModelRow.model.is_not(None))
    query = select(*_COLUMNS, CostModelRow.model).where(*stored).order_by(CostModelRow.id.desc()).limit(1)
    row = session.execute(query).first()
    return None if row is None else (Version(*row[:-1]), row[-1])


def versions(session: Session, device_class: str | None = None) -> dict[str, list[Version]]:
    """All versions, newest first, by device class; of one class or of every one that has any."""
    query = select(*_COLUMNS).order_by(CostModelRow.device_class, CostModelRow.id.desc())
    if device_class is not None:
        query = query.where(CostModelRow.device_class == device_class)
    found: dict[str, list[Version]] = defaultdict(list)
    for row in session.execute(query):
        found[row.device_class].append(Version(*row))
    return dict(found)


def evaluated(known: Sequence[Version]) -> Version | None:
    """The first of the versions that has metrics."""
    return next((version for version in known if version.metrics is not None), None)
