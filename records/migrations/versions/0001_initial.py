"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# SQLite counts rows up by itself only in a column declared INTEGER.
ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _blobs()
    _device_classes()
    _workloads()
    _blob_chunks()
    _models()
    _records()
    _workers()
    _fenced_sessions()
    _jobs()
    _events()
    _leases()
    _tasks()
    _module_runs()
    _trials()


def _blobs() -> None:
    op.create_table(
        "blobs",
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sha", name="pk_blobs"),
    )


def _device_classes() -> None:
    op.create_table(
        "device_classes",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_device_classes"),
    )
    op.create_index("ix_device_classes_name", "device_classes", ["name"])


def _workloads() -> None:
    op.create_table(
        "workloads",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("module_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_workloads"),
    )


def _blob_chunks() -> None:
    op.create_table(
        "blob_chunks",
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["sha"], ["blobs.sha"], name="fk_blob_chunks_sha"),
        sa.PrimaryKeyConstraint("sha", "position", name="pk_blob_chunks"),
    )


def _models() -> None:
    op.create_table(
        "models",
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["sha"], ["blobs.sha"], name="fk_models_sha"),
        sa.PrimaryKeyConstraint("sha", name="pk_models"),
    )


def _records() -> None:
    op.create_table(
        "records",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("workload_hash", sa.Text(), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=False),
        sa.Column("trace", sa.Text(), nullable=False),
        sa.Column("trace_sha", sa.Text(), nullable=False),
        sa.Column("program", sa.JSON(), nullable=True),
        sa.Column("latency_s", sa.Double(), nullable=True),
        sa.Column("run_secs", sa.JSON(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_class"], ["device_classes.key"], name="fk_records_device_class"),
        sa.ForeignKeyConstraint(["workload_hash"], ["workloads.hash"], name="fk_records_workload_hash"),
        sa.PrimaryKeyConstraint("id", name="pk_records"),
        sa.UniqueConstraint(
            "workload_hash",
            "device_class",
            "trace_sha",
            name="uq_records_workload_hash_device_class_trace_sha",
        ),
    )
    op.create_index("ix_records_device_class_created_at", "records", ["device_class", "created_at"])
    op.create_index(
        "ix_records_workload_hash_device_class_latency_s",
        "records",
        ["workload_hash", "device_class", "latency_s"],
    )


def _workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.Column("trials_done", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["device_class"], ["device_classes.key"], name="fk_workers_device_class"),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )


def _fenced_sessions() -> None:
    op.create_table(
        "fenced_sessions",
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("fenced_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name="fk_fenced_sessions_worker_id"),
        sa.PrimaryKeyConstraint("worker_id", "session_id", name="pk_fenced_sessions"),
    )


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("model_sha", sa.Text(), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("shapes", sa.JSON(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("minutes", sa.Double(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("untuned_secs", sa.JSON(), nullable=True),
        sa.Column("tuned_secs", sa.JSON(), nullable=True),
        sa.Column("untuned_artifact_sha", sa.Text(), nullable=True),
        sa.Column("artifact_sha", sa.Text(), nullable=True),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("held_until", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["artifact_sha"], ["blobs.sha"], name="fk_jobs_artifact_sha"),
        sa.ForeignKeyConstraint(["device_class"], ["device_classes.key"], name="fk_jobs_device_class"),
        sa.ForeignKeyConstraint(["model_sha"], ["models.sha"], name="fk_jobs_model_sha"),
        sa.ForeignKeyConstraint(["untuned_artifact_sha"], ["blobs.sha"], name="fk_jobs_untuned_artifact_sha"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("idempotency_key", name="uq_jobs_idempotency_key"),
    )
    op.create_index("ix_jobs_created_at_id", "jobs", ["created_at", "id"])
    op.create_index("ix_jobs_state", "jobs", ["state"])


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_events_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"])


def _leases() -> None:
    op.create_table(
        "leases",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("taken_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_leases_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_leases"),
    )
    op.create_index("ix_leases_closed_at_expires_at", "leases", ["closed_at", "expires_at"])
    op.create_index("ix_leases_worker_id_closed_at", "leases", ["worker_id", "closed_at"])


def _tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("workload_hash", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("flops", sa.Double(), nullable=False),
        sa.Column("covered", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("constants", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_tasks_job_id"),
        sa.ForeignKeyConstraint(["workload_hash"], ["workloads.hash"], name="fk_tasks_workload_hash"),
        sa.PrimaryKeyConstraint("id", name="pk_tasks"),
        sa.UniqueConstraint("job_id", "workload_hash", name="uq_tasks_job_id_workload_hash"),
    )


def _module_runs() -> None:
    op.create_table(
        "module_runs",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("artifact_sha", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("run_secs", sa.JSON(), nullable=True),
        sa.Column("build_secs", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("outputs_sha", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["artifact_sha"], ["blobs.sha"], name="fk_module_runs_artifact_sha"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_module_runs_job_id"),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.id"], name="fk_module_runs_lease_id"),
        sa.ForeignKeyConstraint(["outputs_sha"], ["blobs.sha"], name="fk_module_runs_outputs_sha"),
        sa.PrimaryKeyConstraint("id", name="pk_module_runs"),
        sa.UniqueConstraint("job_id", "kind", "artifact_sha", name="uq_module_runs_job_id_kind_artifact_sha"),
    )
    op.create_index("ix_module_runs_lease_id", "module_runs", ["lease_id"])
    op.create_index("ix_module_runs_state_id", "module_runs", ["state", "id"])


def _trials() -> None:
    op.create_table(
        "trials",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("task_id", ROW_ID, nullable=False),
        sa.Column("workload_hash", sa.Text(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("program", sa.JSON(), nullable=True),
        sa.Column("trace", sa.Text(), nullable=False),
        sa.Column("trace_sha", sa.Text(), nullable=False),
        sa.Column("predicted_s", sa.Double(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("run_secs", sa.JSON(), nullable=True),
        sa.Column("build_secs", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_trials_job_id"),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.id"], name="fk_trials_lease_id"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_trials_task_id"),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.UniqueConstraint(
            "job_id", "workload_hash", "trace_sha", name="uq_trials_job_id_workload_hash_trace_sha"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_trials_job_id_state", "trials", ["job_id", "state"])
    op.create_index("ix_trials_lease_id", "trials", ["lease_id"])
    op.create_index("ix_trials_state_id", "trials", ["state", "id"])
    op.create_index("ix_trials_task_id_state", "trials", ["task_id", "state"])
