"""The models that users uploaded."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.storage import blobs
from records.storage.database import NotFound
from records.storage.statements import insert_into
from records.storage.tables import BlobRow, ModelRow


class ModelNotFound(NotFound):
    """No model has this digest."""


@dataclass(frozen=True)
class ModelInfo:
    """A stored model of `size` bytes, which are the blob `sha`. It was last uploaded at `created_at`."""

    sha: str
    name: str
    size: int
    created_at: float


def add(session: Session, sha: str, name: str, now: float) -> ModelInfo:
    """Make the stored blob `sha` a model. A model that is stored already keeps its name, and its time becomes
    `now`. Raises BlobNotFound."""
    if blobs.size(session, sha) is None:
        raise blobs.BlobNotFound(f"there is no blob {sha!r}")
    row = {"sha": sha, "name": name, "created_at": now}
    stored = insert_into(session, ModelRow).values(row)
    session.execute(stored.on_conflict_do_update(index_elements=["sha"], set_={"created_at": now}))
    return get(session, sha)


def get(session: Session, sha: str) -> ModelInfo:
    """Return a model, and keep it from being deleted in this transaction. Raises ModelNotFound."""
    columns = select(ModelRow.sha, ModelRow.name, BlobRow.size, ModelRow.created_at)
    row = session.execute(
        columns.join(BlobRow, BlobRow.sha == ModelRow.sha)
        .where(ModelRow.sha == sha)
        .with_for_update(read=True, key_share=True, of=ModelRow)
    ).first()
    if row is None:
        raise ModelNotFound(f"there is no model {sha!r}")
    return ModelInfo(*row)
