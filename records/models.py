"""The models that users handed in."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session


class ModelNotFound(KeyError):
    """No model has this digest."""


@dataclass(frozen=True)
class ModelInfo:
    """A stored model; its bytes are the blob `sha`."""

    sha: str
    name: str
    size: int
    created_at: float


def add(session: Session, sha: str, name: str, now: float) -> ModelInfo:
    """Make the stored blob `sha` a model; a model that is known keeps its first name. Raises BlobNotFound."""
    raise NotImplementedError


def get(session: Session, sha: str) -> ModelInfo:
    """Raises ModelNotFound."""
    raise NotImplementedError
