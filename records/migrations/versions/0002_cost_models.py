"""Add versions of cost models, and tags of workloads."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

# SQLite counts rows up by itself only in a column declared INTEGER.
ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "cost_models",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("device_class", sa.Text(), nullable=False),
        sa.Column("records", sa.Integer(), nullable=False),
        sa.Column("newest_record_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("train_secs", sa.Double(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=True),
        sa.Column("model", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["device_class"], ["device_classes.key"], name="fk_cost_models_device_class"),
        sa.PrimaryKeyConstraint("id", name="pk_cost_models"),
    )
    op.create_index("ix_cost_models_device_class_id", "cost_models", ["device_class", "id"])
    op.add_column("workloads", sa.Column("tag", sa.Text(), nullable=True))
    op.create_index("ix_workloads_tag", "workloads", ["tag"])


def downgrade() -> None:
    op.drop_index("ix_workloads_tag", table_name="workloads")
    op.drop_column("workloads", "tag")
    op.drop_table("cost_models")
