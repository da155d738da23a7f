"""Add TVMScripts, signatures of tasks, and the analytic estimate of trials."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("signature", sa.Text(), nullable=False, server_default=""))
    op.add_column("tasks", sa.Column("num_bytes", sa.Double(), nullable=False, server_default="0"))
    op.add_column("trials", sa.Column("estimated_s", sa.Double()))
    op.create_table(
        "listings",
        sa.Column(
            "workload_hash",
            sa.Text(),
            sa.ForeignKey("workloads.hash", name="fk_listings_workload_hash"),
            primary_key=True,
        ),
        sa.Column("trace_sha", sa.Text(), primary_key=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("decisions", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("workload_hash", "trace_sha", name="pk_listings"),
    )


def downgrade() -> None:
    op.drop_table("listings")
    op.drop_column("trials", "estimated_s")
    op.drop_column("tasks", "num_bytes")
    op.drop_column("tasks", "signature")
