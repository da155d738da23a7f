"""Ids that users shorten to their beginning."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session

from records.storage.database import NotFound

_LISTED = 5


def only_id(session: Session, ids: InstrumentedAttribute[str], start: str, missing: type[NotFound]) -> str:
    """Return the only id of a column that begins with `start`.

    Return `start` itself if it is an id, or if no id begins with it. Raises `missing` if several ids do.
    """
    if session.scalar(select(ids).where(ids == start)) is not None:
        return start
    begun = select(ids).where(ids.startswith(start, autoescape=True)).order_by(ids).limit(_LISTED + 1)
    found = list(session.scalars(begun))
    if len(found) > 1:
        listed = ", ".join(found[:_LISTED]) + (", ..." if found[_LISTED:] else "")
        raise missing(f"several ids start with {start!r} ({listed}): give more of the id")
    return found[0] if found else start
