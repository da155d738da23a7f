"""Add counters of trials, and indices for the queries of every worker's call."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_COUNT = "(SELECT count(*) FROM trials WHERE trials.job_id = jobs.id{})"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("trials_issued", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("trials_done", sa.Integer(), nullable=False, server_default="0"))
    done = _COUNT.format(" AND trials.state = 'done'")
    op.execute(f"UPDATE jobs SET trials_issued = {_COUNT.format('')}, trials_done = {done}")
    op.add_column("trials", sa.Column("latency_s", sa.Double(), nullable=True))
    op.drop_index("ix_trials_state_id", table_name="trials")
    op.drop_index("ix_trials_job_id_state", table_name="trials")
    op.create_index("ix_trials_job_id_state_id", "trials", ["job_id", "state", "id"])
    op.create_index("ix_jobs_device_class_state", "jobs", ["device_class", "state"])
    op.create_index("ix_workers_device_class", "workers", ["device_class"])


def downgrade() -> None:
    op.drop_index("ix_workers_device_class", table_name="workers")
    op.drop_index("ix_jobs_device_class_state", table_name="jobs")
    op.drop_index("ix_trials_job_id_state_id", table_name="trials")
    op.create_index("ix_trials_job_id_state", "trials", ["job_id", "state"])
    op.create_index("ix_trials_state_id", "trials", ["state", "id"])
    op.drop_column("trials", "latency_s")
    op.drop_column("jobs", "trials_done")
    op.drop_column("jobs", "trials_issued")
