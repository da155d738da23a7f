"""Add timings of users' models in ONNX Runtime."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("onnxruntime", sa.JSON(), nullable=True))
    op.add_column("module_runs", sa.Column("onnxruntime", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("module_runs", "onnxruntime")
    op.drop_column("jobs", "onnxruntime")
