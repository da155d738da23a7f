"""Index measured and imported records separately."""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_index("ix_records_fastest", "records", ["workload_hash", "device_class", "source", "latency_s"])
    op.drop_index("ix_records_workload_hash_device_class_latency_s", "records")


def downgrade() -> None:
    of_class = ["workload_hash", "device_class", "latency_s"]
    op.create_index("ix_records_workload_hash_device_class_latency_s", "records", of_class)
    op.drop_index("ix_records_fastest", "records")
