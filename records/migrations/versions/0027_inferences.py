"""Add inference jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("infers", sa.Text(), nullable=True))
    op.create_table(
        "inferences",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.Column("outputs_sha", sa.Text(), nullable=True),
        sa.Column("comparison", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_inferences_job_id"),
        sa.ForeignKeyConstraint(["inputs"], ["datasets.sha"], name="fk_inferences_inputs"),
        sa.ForeignKeyConstraint(["outputs_sha"], ["blobs.sha"], name="fk_inferences_outputs_sha"),
        sa.PrimaryKeyConstraint("job_id", name="pk_inferences"),
    )


def downgrade() -> None:
    op.drop_table("inferences")
    op.drop_column("jobs", "infers")
