"""When each clock was seen last."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.add_column("clocks", sa.Column("seen_at", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("clocks", "seen_at")
