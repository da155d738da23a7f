"""Add tags and notes of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("tags", sa.Text(), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("notes", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("jobs", "notes")
    op.drop_column("jobs", "tags")
