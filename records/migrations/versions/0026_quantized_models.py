"""Add datasets, and quantized forms of models."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.create_table(
        "datasets",
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["sha"], ["blobs.sha"], name="fk_datasets_sha"),
        sa.PrimaryKeyConstraint("sha", name="pk_datasets"),
    )
    op.create_table(
        "quantized_models",
        sa.Column("model_sha", sa.Text(), nullable=False),
        sa.Column("quantize", sa.Text(), nullable=False),
        sa.Column("calibration", sa.Text(), nullable=False),
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("accuracy", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["model_sha"], ["models.sha"], name="fk_quantized_models_model_sha"),
        sa.ForeignKeyConstraint(["sha"], ["blobs.sha"], name="fk_quantized_models_sha"),
        sa.PrimaryKeyConstraint("model_sha", "quantize", "calibration", name="pk_quantized_models"),
    )
    op.add_column("jobs", sa.Column("quantize", sa.Text(), nullable=False, server_default="none"))
    op.add_column("jobs", sa.Column("calibration", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "calibration")
    op.drop_column("jobs", "quantize")
    op.drop_table("quantized_models")
    op.drop_table("datasets")
