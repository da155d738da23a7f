"""Add desired and reported states of workers, and the jobs' shares of devices."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("workers", sa.Column("failures_by_kind", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("workers", sa.Column("wanted", sa.Text(), nullable=False, server_default="work"))
    op.add_column("workers", sa.Column("vitals", sa.JSON(), nullable=True))
    op.add_column("workers", sa.Column("trial_s", sa.Double(), nullable=True))
    op.add_column("leases", sa.Column("measured", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("weight", sa.Double(), nullable=False, server_default="1"))
    op.create_table(
        "shares",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("begun", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_shares_job_id"),
        sa.PrimaryKeyConstraint("job_id", name="pk_shares"),
    )


def downgrade() -> None:
    op.drop_table("shares")
    for table, columns in {
        "workers": ("failures_by_kind", "wanted", "vitals", "trial_s"),
        "leases": ("measured",),
        "jobs": ("priority", "weight"),
    }.items():
        for column in columns:
            op.drop_column(table, column)
