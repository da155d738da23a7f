"""The revisions of the schema, and its migration by Alembic.

Only a migration imports Alembic: that takes an eighth of a server's start.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE = "alembic_version"
_MIGRATIONS = Path(__file__).parents[1] / "migrations"


@functools.cache
def known_revisions() -> tuple[str, ...]:
    """Return the revisions that this release can migrate, from the first to the newest one."""
    return tuple(sorted(file.name.partition("_")[0] for file in _MIGRATIONS.glob("versions/[0-9]*.py")))


def current_revisions(connection: Connection) -> set[str]:
    """Return the revisions of a database; none if it was never migrated."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return set()
    return set(connection.scalars(text(f"SELECT version_num FROM {VERSION_TABLE}")))


def migrate(connection: Connection, to: str) -> None:
    """Migrate a database to a revision, or to the newest one, "head". Raises KeyError for an unknown one."""
    known = known_revisions()
    target = known[-1] if to == "head" else to
    if target not in known:
        raise KeyError(to)
    current = current_revisions(connection)
    if current == {target}:
        return
    from alembic import command

    config = alembic_config()
    config.attributes["connection"] = connection
    is_back = any(revision > target for revision in current)
    (command.downgrade if is_back else command.upgrade)(config, target)


def alembic_config() -> Config:
    """Return the settings with which Alembic finds the migrations."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config
