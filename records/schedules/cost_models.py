"""The versions of the cost model of each device class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from records import devices
from records.storage.tables import CostModelRow

# The number of versions of a class whose bytes are kept. Older ones are only listed.
VERSIONS_WITH_BYTES = 10
# The number of versions of a class that are listed, and of evaluated ones. There is a new one every few
# seconds.
LISTED_VERSIONS = 500


@dataclass(frozen=True)
class Version:
    """One training of a cost model.

    It used `records` records; the newest was stored at `newest_record_at`. It took `train_s` seconds and
    ended at `created_at`. `metrics` are measured on held-out records, None if there were none.
    """

    device_class: str
    records: int
    newest_record_at: float
    created_at: float
    train_s: float
    metrics: dict[str, Any] | None


_COLUMNS = [getattr(CostModelRow, name) for name in Version.__dataclass_fields__]


def add(session: Session, version: Version, model: bytes) -> None:
    """Store a version with its bytes, and delete old ones. The newest VERSIONS_WITH_BYTES versions of a class
    keep their bytes.

    Raises DeviceClassNotFound.
    """
    devices.get_class(session, version.device_class)
    session.execute(insert(CostModelRow).values(asdict(version) | {"model": model}))
    of_class = CostModelRow.device_class == version.device_class
    kept = select(CostModelRow.id).where(of_class).order_by(CostModelRow.id.desc()).limit(VERSIONS_WITH_BYTES)
    old = (of_class, CostModelRow.model.is_not(None), CostModelRow.id.not_in(kept.scalar_subquery()))
    session.execute(update(CostModelRow).where(*old).values(model=None))
    newest_first = select(CostModelRow.id).where(of_class).order_by(CostModelRow.id.desc())
    evaluated = newest_first.where(CostModelRow.metrics.is_not(None)).limit(LISTED_VERSIONS)
    listed = (newest_first.limit(LISTED_VERSIONS), evaluated)
    unlisted = [CostModelRow.id.not_in(ids.scalar_subquery()) for ids in listed]
    session.execute(delete(CostModelRow).where(of_class, *unlisted))


def newest(session: Session, device_class: str) -> tuple[Version, bytes] | None:
    """Return the class's newest version with its bytes."""
    stored = (CostModelRow.device_class == device_class, CostModelRow.model.is_not(None))
    query = select(*_COLUMNS, CostModelRow.model).where(*stored).order_by(CostModelRow.id.desc()).limit(1)
    row = session.execute(query).first()
    return None if row is None else (Version(*row[:-1]), row[-1])


def versions(session: Session, device_class: str | None = None) -> dict[str, list[Version]]:
    """Return the versions by device class, newest first; of one class only if it is given."""
    query = select(*_COLUMNS).order_by(CostModelRow.device_class, CostModelRow.id.desc())
    if device_class is not None:
        query = query.where(CostModelRow.device_class == device_class)
    found: dict[str, list[Version]] = defaultdict(list)
    for row in session.execute(query):
        found[row.device_class].append(Version(*row))
    return dict(found)


def newest_evaluated(session: Session) -> list[Version]:
    """Return the newest version with metrics of every class that has one."""
    with_metrics = select(func.max(CostModelRow.id)).where(CostModelRow.metrics.is_not(None))
    ids = with_metrics.group_by(CostModelRow.device_class)
    rows = session.execute(select(*_COLUMNS).where(CostModelRow.id.in_(ids)))
    return [Version(*row) for row in rows]


def evaluated(versions: Sequence[Version]) -> Version | None:
    """Return the first of the versions that has metrics."""
    return next((version for version in versions if version.metrics is not None), None)
