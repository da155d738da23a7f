"""Add a covering index of finished trials."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    is_done = sa.text("finished_at IS NOT NULL")
    columns = ["job_id", "finished_at", "id", "task_id", "latency_s"]
    op.create_index("ix_trials_done", "trials", columns, postgresql_where=is_done, sqlite_where=is_done)


def downgrade() -> None:
    op.drop_index("ix_trials_done", "trials")
