"""Identify new records by ids, and store how module runs compare outputs."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.drop_index("ix_records_device_class_created_at", table_name="records")
    op.create_index("ix_records_device_class_id", "records", ["device_class", "id"])
    with op.batch_alter_table("module_runs") as module_runs:
        module_runs.drop_constraint("fk_module_runs_outputs_sha", type_="foreignkey")
        module_runs.drop_column("outputs_sha")


def downgrade() -> None:
    with op.batch_alter_table("module_runs") as module_runs:
        module_runs.add_column(sa.Column("outputs_sha", sa.Text(), nullable=True))
        module_runs.create_foreign_key("fk_module_runs_outputs_sha", "blobs", ["outputs_sha"], ["sha"])
    op.drop_index("ix_records_device_class_id", table_name="records")
    op.create_index("ix_records_device_class_created_at", "records", ["device_class", "created_at"])
