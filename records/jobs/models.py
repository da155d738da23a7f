"""The models and the datasets that users uploaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.storage import blobs
from records.storage.database import NotFound
from records.storage.statements import insert_into
from records.storage.tables import BlobRow, DatasetRow, ModelRow


class UploadKind(Enum):
    """The kinds of uploads."""

    MODEL = "model"
    DATASET = "dataset"


_TABLES: Mapping[UploadKind, type[ModelRow | DatasetRow]] = {
    UploadKind.MODEL: ModelRow,
    UploadKind.DATASET: DatasetRow,
}


class ModelNotFound(NotFound):
    """No model has this digest."""


class DatasetNotFound(NotFound):
    """No dataset has this digest."""


@dataclass(frozen=True)
class UploadInfo:
    """A stored model or dataset of `size` bytes, the blob `sha`. It was last uploaded at `created_at`."""

    sha: str
    name: str
    size: int
    created_at: float


def add(session: Session, sha: str, name: str, now: float, kind: UploadKind = UploadKind.MODEL) -> UploadInfo:
    """Store the blob `sha` as a model or a dataset. If it is one already, it keeps its name, and its time
    becomes `now`. Raises BlobNotFound."""
    if blobs.size(session, sha) is None:
        raise blobs.BlobNotFound(f"there is no blob {sha!r}")
    row = {"sha": sha, "name": name, "created_at": now}
    stored = insert_into(session, _TABLES[kind]).values(row)
    session.execute(stored.on_conflict_do_update(index_elements=["sha"], set_={"created_at": now}))
    return get(session, sha, kind)


def get(session: Session, sha: str, kind: UploadKind = UploadKind.MODEL) -> UploadInfo:
    """Return a model or a dataset, and lock it: it can't be deleted during this transaction.

    Raises ModelNotFound and DatasetNotFound.
    """
    table = _TABLES[kind]
    columns = select(table.sha, table.name, BlobRow.size, table.created_at)
    row = session.execute(
        columns.join(BlobRow, BlobRow.sha == table.sha)
        .where(table.sha == sha)
        .with_for_update(read=True, key_share=True, of=table)
    ).first()
    if row is None:
        if kind is UploadKind.DATASET:
            raise DatasetNotFound(f"there is no dataset {sha!r}: upload it first")
        raise ModelNotFound(f"there is no model {sha!r}")
    return UploadInfo(*row)
