"""Alembic runs this file; `records.database` hands it the connection, inside the migration's transaction."""

from alembic import context

from records.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
