"""Tasks that may take another task's place; jobs that want none of them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("variant", sa.Text(), nullable=False, server_default=""))
    op.add_column("tasks", sa.Column("variant_of", sa.Text(), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("exact", sa.Boolean(), nullable=False, server_default=sa.false()))
