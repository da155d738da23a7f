"""Add the registers and spilled bytes that the compiler reports for GPU kernels."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    for table in ("trials", "records"):
        for name in ("registers", "spilled_bytes"):
            op.add_column(table, sa.Column(name, sa.Integer(), nullable=True))


def downgrade() -> None:
    for table in ("trials", "records"):
        for name in ("registers", "spilled_bytes"):
            op.drop_column(table, name)
