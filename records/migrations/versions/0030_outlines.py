"""Outlines of models."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.create_table(
        "outlines",
        sa.Column("model_sha", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("attempt_at", sa.Double(), nullable=True),
        sa.Column("outline", sa.JSON(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["model_sha"], ["models.sha"], name="fk_outlines_model_sha"),
        sa.PrimaryKeyConstraint("model_sha", name="pk_outlines"),
    )


def downgrade() -> None:
    op.drop_table("outlines")
