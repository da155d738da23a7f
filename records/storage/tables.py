"""The tables. The migrations in `records/migrations` create them; a test compares both."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from core.plain_text import without_controls

# SQLite assigns ids only in a column declared INTEGER.
RowId = BigInteger().with_variant(Integer, "sqlite")
Json = JSON(none_as_null=True)


class SanitizedText(TypeDecorator[str]):
    """Text without characters that a database refuses or a terminal executes. A key with such characters
    matches no row."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value if value is None else storable(value)


def storable(text: str) -> str:
    """Replace characters that a database refuses or a terminal executes."""
    plain = without_controls(text)
    return plain if plain.isascii() else plain.encode("utf-8", "replace").decode()


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        str: SanitizedText,
        float: Double,
        dict[str, Any]: Json,
        list[Any]: Json,
    }


class BlobRow(Base):
    __tablename__ = "blobs"
    sha: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    # The blob is in the blob store, and has no chunks.
    external: Mapped[bool] = mapped_column(default=False)


class ChunkRow(Base):
    __tablename__ = "blob_chunks"
    sha: Mapped[str] = mapped_column(ForeignKey("blobs.sha"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class ModelRow(Base):
    __tablename__ = "models"
    sha: Mapped[str] = mapped_column(ForeignKey("blobs.sha"), primary_key=True)
    name: Mapped[str]
    created_at: Mapped[float]


class OutlineRow(Base):
    """The outline of a model, null until it is read; or the problem why it can't be read.

    `outline` has the fields of core.model_outline.ModelOutline.
    """

    __tablename__ = "outlines"
    model_sha: Mapped[str] = mapped_column(ForeignKey("models.sha"), primary_key=True)
    attempts: Mapped[int]
    attempt_at: Mapped[float | None]
    outline: Mapped[dict[str, Any] | None]
    problem: Mapped[str]


class DatasetRow(Base):
    """The arrays of an .npz file, by the names of a model's inputs."""

    __tablename__ = "datasets"
    sha: Mapped[str] = mapped_column(ForeignKey("blobs.sha"), primary_key=True)
    name: Mapped[str]
    created_at: Mapped[float]


class QuantizedModelRow(Base):
    """A quantized form of a model. `calibration` is the dataset's sha; "" without one. If it is `narrow`,
    weights have 7 bits where the accuracy admits it.

    `accuracy` has the fields of core.quantization.Quantization.
    """

    __tablename__ = "quantized_models"
    model_sha: Mapped[str] = mapped_column(ForeignKey("models.sha"), primary_key=True)
    quantize: Mapped[str] = mapped_column(primary_key=True)
    calibration: Mapped[str] = mapped_column(primary_key=True)
    narrow: Mapped[bool] = mapped_column(primary_key=True)
    sha: Mapped[str] = mapped_column(ForeignKey("blobs.sha"))
    accuracy: Mapped[dict[str, Any]]


class DeviceClassRow(Base):
    __tablename__ = "device_classes"
    key: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(index=True)
    device: Mapped[str]
    target: Mapped[str]
    # The platform that builders link for, such as x86_64_cuda_13_0; null if they can't build for it.
    platform: Mapped[str | None]
    cores: Mapped[int]
    toolchain: Mapped[str]
    # A core.profile.Profile as JSON, measured by the last calibration of a device of the class.
    profile: Mapped[str | None]


class WorkerRow(Base):
    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(primary_key=True)
    session_id: Mapped[str]
    device_class: Mapped[str | None] = mapped_column(ForeignKey("device_classes.key"), index=True)
    state: Mapped[str]
    last_seen_at: Mapped[float]
    trials_done: Mapped[int] = mapped_column(default=0)
    failures: Mapped[int] = mapped_column(default=0)
    failures_by_kind: Mapped[dict[str, Any]] = mapped_column(default=dict)
    # The desired state: work, drain, evicted or update.
    desired_state: Mapped[str] = mapped_column(default="work")
    vitals: Mapped[dict[str, Any] | None]
    # Recent average of seconds per trial.
    trial_s: Mapped[float | None]
    # Whether the worker was asked to calibrate its device again.
    calibrate: Mapped[bool] = mapped_column(default=False)
    # The token that owns the name; null if none was needed or the bootstrap token was used.
    token_id: Mapped[str | None]
    # The boot id of the machine that its session runs on; empty if it is unknown.
    boot_id: Mapped[str] = mapped_column(default="")
    # The cores, or the GPU, that its session measures on; null if they are unknown.
    hardware: Mapped[list[Any] | None]
    # Until this time, it measures only the jobs that this token has submitted; null without a reservation.
    reserved_for: Mapped[str | None]
    reserved_until: Mapped[float | None]


class BuilderRow(Base):
    """A platform that a worker builds for. `own`: the worker itself runs on it. `cores` are the worker's."""

    __tablename__ = "builders"
    worker_id: Mapped[str] = mapped_column(ForeignKey("workers.id"), primary_key=True)
    platform: Mapped[str] = mapped_column(primary_key=True)
    own: Mapped[bool]
    cores: Mapped[int]
    toolchain: Mapped[str]


class FencedSessionRow(Base):
    """A session that a newer one of the same worker has fenced off."""

    __tablename__ = "fenced_sessions"
    worker_id: Mapped[str] = mapped_column(ForeignKey("workers.id"), primary_key=True)
    session_id: Mapped[str] = mapped_column(primary_key=True)
    fenced_at: Mapped[float]


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "created_at", "id"),
        Index(None, "state"),
        Index(None, "device_class", "state"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    idempotency_key: Mapped[str | None] = mapped_column(unique=True)
    model_sha: Mapped[str] = mapped_column(ForeignKey("models.sha"))
    model_name: Mapped[str]
    shapes: Mapped[dict[str, Any]]
    target: Mapped[str]
    trials: Mapped[int]
    minutes: Mapped[float | None]
    seed: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str]
    error: Mapped[str | None]
    message: Mapped[str]
    device_class: Mapped[str | None] = mapped_column(ForeignKey("device_classes.key"))
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    untuned_s: Mapped[list[Any] | None]
    tuned_s: Mapped[list[Any] | None]
    untuned_artifact_sha: Mapped[str | None] = mapped_column(ForeignKey("blobs.sha"))
    artifact_sha: Mapped[str | None] = mapped_column(ForeignKey("blobs.sha"))
    holder: Mapped[str | None]
    held_until: Mapped[float | None]
    priority: Mapped[int] = mapped_column(default=0)
    weight: Mapped[float] = mapped_column(default=1.0)
    # Where its candidates are built: auto, device or builder.
    build: Mapped[str] = mapped_column(default="auto")
    exact: Mapped[bool] = mapped_column(default=False)
    tf32: Mapped[bool] = mapped_column(default=False)
    # The type to quantize the model to, and the sha of the calibration dataset. The sha isn't a foreign key,
    # because SQLite can't add one to a table.
    quantize: Mapped[str] = mapped_column(default="none")
    calibration: Mapped[str | None]
    # The job whose artifact an inference job runs. That job may have been deleted since.
    infers: Mapped[str | None]
    # The number of its trials, and of the finished ones. They are stored because counting many trials takes
    # long.
    trials_issued: Mapped[int] = mapped_column(default=0)
    trials_done: Mapped[int] = mapped_column(default=0)
    # The id of the first job of its group; null for a single job.
    group_id: Mapped[str | None] = mapped_column(index=True)
    model_weight: Mapped[float] = mapped_column(default=1.0)
    objective: Mapped[str] = mapped_column(default="sum")
    latency_s: Mapped[float | None]
    min_gain: Mapped[float | None]
    # The size of symbolic leading dimensions, with which intake completes the shapes.
    batch: Mapped[int | None]
    # The timing of the user's model in ONNX Runtime: the fields of records.jobs.jobs.OnnxRuntime.
    onnxruntime: Mapped[dict[str, Any] | None]
    # The footprint of the published model: the fields of core.measurement.Footprint.
    footprint: Mapped[dict[str, Any] | None]
    # The speed of the device that timed the published model, see core.measurement.Measurement.
    speed: Mapped[float | None]
    # Why the tuning ended; empty until it ends.
    end_reason: Mapped[str] = mapped_column(default="")
    # When the job is expected to end; null while that is unknown.
    expected_end_at: Mapped[float | None]
    # The W3C traceparent of the job's spans; empty if the job isn't traced.
    trace_parent: Mapped[str] = mapped_column(default="")
    # Counts the artifacts of the model on the device class, from 1; null without an artifact.
    artifact_version: Mapped[int | None]
    # Written by users. There is a space before each tag and after the last one.
    tags: Mapped[str] = mapped_column(default="")
    notes: Mapped[str] = mapped_column(default="")
    # The id of the token that submitted it, "bootstrap" or "loopback"; empty for jobs older than this column.
    submitted_by: Mapped[str] = mapped_column(default="")


class InferenceRow(Base):
    """The dataset and the results of an inference job. `comparison` has the fields of
    core.inference.Comparison.
    """

    __tablename__ = "inferences"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    inputs: Mapped[str] = mapped_column(ForeignKey("datasets.sha"))
    outputs_sha: Mapped[str | None] = mapped_column(ForeignKey("blobs.sha"))
    comparison: Mapped[dict[str, Any] | None]


class ArtifactCountRow(Base):
    """The last version of a model's artifacts on a device class. Versions are never reused."""

    __tablename__ = "artifact_counts"
    # No foreign keys: it outlives the model and its jobs.
    model_sha: Mapped[str] = mapped_column(primary_key=True)
    device_class: Mapped[str] = mapped_column(primary_key=True)
    last_version: Mapped[int]


class ReleaseRow(Base):
    """A name, such as `production`, for the artifact of a job on its device class."""

    __tablename__ = "releases"
    name: Mapped[str] = mapped_column(primary_key=True)
    device_class: Mapped[str] = mapped_column(ForeignKey("device_classes.key"), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    set_at: Mapped[float]


class ShareRow(Base):
    """The start tag and finish tag of a job's last lease in the fair queue's virtual time.

    They aren't columns of the job, because jobs are locked before trials, and these columns change after the
    trials.
    """

    __tablename__ = "shares"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    begun: Mapped[float]
    ended: Mapped[float]


class WorkloadRow(Base):
    __tablename__ = "workloads"
    hash: Mapped[str] = mapped_column(primary_key=True)
    module_json: Mapped[str]
    tag: Mapped[str | None] = mapped_column(index=True)


class TaskRow(Base):
    __tablename__ = "tasks"
    __table_args__ = (UniqueConstraint("job_id", "workload_hash"),)
    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    workload_hash: Mapped[str] = mapped_column(ForeignKey("workloads.hash"))
    name: Mapped[str]
    weight: Mapped[int]
    flops: Mapped[float]
    covered: Mapped[bool]
    reason: Mapped[str]
    constants: Mapped[list[Any]]
    # The kind of variant, and the workload that it may replace; both are empty for other tasks.
    variant: Mapped[str] = mapped_column(default="")
    variant_of: Mapped[str] = mapped_column(default="")
    # The types and shapes of its operands, and their total bytes.
    signature: Mapped[str] = mapped_column(default="")
    num_bytes: Mapped[float] = mapped_column(default=0.0)
    # The name of the model's node at which it first occurs.
    layer: Mapped[str] = mapped_column(default="")


class LeaseRow(Base):
    __tablename__ = "leases"
    __table_args__ = (Index(None, "closed_at", "expires_at"), Index(None, "worker_id", "closed_at"))
    id: Mapped[str] = mapped_column(primary_key=True)
    worker_id: Mapped[str]
    session_id: Mapped[str]
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    attempt: Mapped[int]
    taken_at: Mapped[float]
    expires_at: Mapped[float]
    closed_at: Mapped[float | None]
    measured: Mapped[int] = mapped_column(default=0)
    # Whether its trials are only built.
    build: Mapped[bool] = mapped_column(default=False)


class TrialRow(Base):
    __tablename__ = "trials"
    # A trace is too long for an index of PostgreSQL, so its digest is the key.
    __table_args__ = (
        UniqueConstraint("job_id", "workload_hash", "trace_sha", "repeat"),
        Index(None, "job_id", "state", "id"),
        Index(None, "task_id", "state"),
        # A covering index for reading many trials at once, because whole rows are long.
        Index(
            "ix_trials_done",
            *("job_id", "finished_at", "id", "task_id", "latency_s"),
            postgresql_where=text("finished_at IS NOT NULL"),
            sqlite_where=text("finished_at IS NOT NULL"),
        ),
        # The ids of deleted trials must not be assigned again.
        {"sqlite_autoincrement": True},
    )
    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    task_id: Mapped[int] = mapped_column(ForeignKey("tasks.id"))
    workload_hash: Mapped[str]
    round: Mapped[int]
    program: Mapped[dict[str, Any] | None]
    trace: Mapped[str]
    trace_sha: Mapped[str]
    # 0 for the first measurement of a trace in a job, then 1, 2, ...
    repeat: Mapped[int] = mapped_column(default=0)
    predicted_s: Mapped[float]
    # The seconds of the analytic estimate; null for trials of imported schedules.
    estimated_s: Mapped[float | None]
    state: Mapped[str]
    attempts: Mapped[int]
    lease_id: Mapped[str | None] = mapped_column(ForeignKey("leases.id"), index=True)
    outcome: Mapped[str | None]
    run_s: Mapped[list[Any] | None]
    # The median of run_s; null for trials that are older than this column.
    latency_s: Mapped[float | None]
    build_s: Mapped[float | None]
    # The speed of the device, see core.measurement.Measurement.
    speed: Mapped[float | None]
    # The compiler's report on GPU kernels, see core.measurement.Resources.
    registers: Mapped[int | None]
    spilled_bytes: Mapped[int | None]
    error: Mapped[str]
    created_at: Mapped[float]
    finished_at: Mapped[float | None]
    # The library that a builder compiled. It is deleted once the trial is done.
    library_sha: Mapped[str | None]


class LibraryRow(Base):
    """The library that a builder compiled for an unfinished trial."""

    __tablename__ = "libraries"
    trial_id: Mapped[int] = mapped_column(
        RowId, ForeignKey("trials.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    sha: Mapped[str] = mapped_column(index=True)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class ModuleRunRow(Base):
    __tablename__ = "module_runs"
    __table_args__ = (UniqueConstraint("job_id", "kind", "artifact_sha"), Index(None, "state", "id"))
    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    kind: Mapped[str]
    artifact_sha: Mapped[str] = mapped_column(ForeignKey("blobs.sha"))
    state: Mapped[str]
    attempts: Mapped[int]
    lease_id: Mapped[str | None] = mapped_column(ForeignKey("leases.id"), index=True)
    outcome: Mapped[str | None]
    run_s: Mapped[list[Any] | None]
    build_s: Mapped[float | None]
    error: Mapped[str]
    created_at: Mapped[float]
    finished_at: Mapped[float | None]
    # The version of ONNX Runtime that the model is timed in; empty for compiled models.
    onnxruntime: Mapped[str] = mapped_column(default="")
    # The fields of core.measurement.Footprint.
    footprint: Mapped[dict[str, Any] | None]
    # The speed of the device, see core.measurement.Measurement.
    speed: Mapped[float | None]


class RecordRow(Base):
    __tablename__ = "records"
    __table_args__ = (
        UniqueConstraint("workload_hash", "device_class", "trace_sha"),
        # By source, so that the fastest measured record is found among many imported ones. SQLAlchemy's
        # default name is too long for PostgreSQL.
        Index("ix_records_fastest", "workload_hash", "device_class", "source", "latency_s"),
        # A record that is measured again gets a new id, so that readers of new records find it.
        Index(None, "device_class", "id"),
    )
    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    workload_hash: Mapped[str] = mapped_column(ForeignKey("workloads.hash"))
    device_class: Mapped[str] = mapped_column(ForeignKey("device_classes.key"))
    trace: Mapped[str]
    trace_sha: Mapped[str]
    program: Mapped[dict[str, Any] | None]
    latency_s: Mapped[float | None]
    run_s: Mapped[list[Any]]
    registers: Mapped[int | None]
    spilled_bytes: Mapped[int | None]
    outcome: Mapped[str]
    target: Mapped[str]
    source: Mapped[str]
    created_at: Mapped[float]


class TvmscriptRow(Base):
    """A program as TVMScript. `trace_sha` is empty for the workload before it is scheduled."""

    __tablename__ = "tvmscripts"
    workload_hash: Mapped[str] = mapped_column(ForeignKey("workloads.hash"), primary_key=True)
    trace_sha: Mapped[str] = mapped_column(primary_key=True)
    text: Mapped[str]
    decisions: Mapped[str]


class EventRow(Base):
    __tablename__ = "events"
    # By kind as well, because a long job has many events of other kinds.
    __table_args__ = (Index(None, "job_id", "id"), Index("ix_events_kind", "job_id", "kind", "id"))
    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    kind: Mapped[str]
    data: Mapped[dict[str, Any]]
    at: Mapped[float]


class CostModelRow(Base):
    __tablename__ = "cost_models"
    __table_args__ = (Index(None, "device_class", "id"),)
    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    device_class: Mapped[str] = mapped_column(ForeignKey("device_classes.key"))
    records: Mapped[int]
    newest_record_at: Mapped[float]
    created_at: Mapped[float]
    train_s: Mapped[float]
    metrics: Mapped[dict[str, Any] | None]
    model: Mapped[bytes | None] = mapped_column(LargeBinary)


class TokenRow(Base):
    """A token; `sha` is the SHA-256 of its secret."""

    __tablename__ = "tokens"
    __table_args__ = (Index(None, "created_at", "id"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    sha: Mapped[str] = mapped_column(unique=True)
    scopes: Mapped[list[Any]]
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    last_used_at: Mapped[float | None]


class AuditRow(Base):
    __tablename__ = "audit"
    # The ids of deleted lines must not be assigned again, because pages are ordered by id.
    __table_args__ = (Index(None, "at"), {"sqlite_autoincrement": True})
    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    at: Mapped[float]
    who: Mapped[str]
    action: Mapped[str]
    subject: Mapped[str]
    outcome: Mapped[str]
    address: Mapped[str]
    times: Mapped[int]


class ClockRow(Base):
    """A reading of a host's clock since its last boot (`records.clock`)."""

    __tablename__ = "clocks"
    boot_id: Mapped[str] = mapped_column(primary_key=True)
    ahead_s: Mapped[float]
    jumped_at: Mapped[float | None]
    seen_at: Mapped[float | None]


class WebhookRow(Base):
    """An address that gets messages about events. Its secret is stored in clear, because it signs the
    messages."""

    __tablename__ = "webhooks"
    id: Mapped[str] = mapped_column(primary_key=True)
    url: Mapped[str]
    events: Mapped[list[Any]]
    secret: Mapped[str]
    created_at: Mapped[float]


class DeliveryRow(Base):
    """A message for a webhook: pending until it is delivered, or failed after the last attempt."""

    __tablename__ = "webhook_deliveries"
    # The ids of deleted messages must not be assigned again, because receivers identify messages by them.
    __table_args__ = (Index(None, "state", "due_at"), {"sqlite_autoincrement": True})
    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id"), index=True)
    event: Mapped[str]
    body: Mapped[str]
    state: Mapped[str]
    attempts: Mapped[int]
    created_at: Mapped[float]
    due_at: Mapped[float | None]
    status: Mapped[int | None]
    error: Mapped[str]
