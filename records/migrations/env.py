"""Alembic runs this file in a migration's transaction, on the connection of `records.storage.database`."""

from alembic import context

from records.storage.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
