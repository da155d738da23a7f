"""Add the trace context of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("trace_parent", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("jobs", "trace_parent")
