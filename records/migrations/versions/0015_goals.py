"""Add goals, objectives and groups of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("group_id", sa.Text(), nullable=True))
    op.create_index("ix_jobs_group_id", "jobs", ["group_id"])
    op.add_column("jobs", sa.Column("model_weight", sa.Double(), nullable=False, server_default="1"))
    op.add_column("jobs", sa.Column("objective", sa.Text(), nullable=False, server_default="sum"))
    op.add_column("jobs", sa.Column("latency_s", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("min_gain", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("batch", sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("end_reason", sa.Text(), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("expected_end_at", sa.Double(), nullable=True))


def downgrade() -> None:
    for name in (
        "expected_end_at",
        "end_reason",
        "batch",
        "min_gain",
        "latency_s",
        "objective",
        "model_weight",
    ):
        op.drop_column("jobs", name)
    op.drop_index("ix_jobs_group_id", "jobs")
    op.drop_column("jobs", "group_id")
