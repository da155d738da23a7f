"""The Python client of a tunefarm service. Needs neither TVM nor a server installed."""

from core.job import Build, JobState
from core.tokens import Scope
from system.tls import TlsError, TlsFiles
from tunefarm.client.client import Client, ClientError, ProblemError, UnreachableError
from tunefarm.client.schedule_cache import ScheduleCache
from tunefarm.client.values import (
    Accuracy,
    AccuracyComparison,
    BestSchedules,
    CostModelReport,
    DeviceClass,
    ExportedRecord,
    ExportedWorkload,
    HeldOutAccuracy,
    ImportResult,
    ImportsDeleted,
    Job,
    JobEvent,
    JobRequest,
    NewToken,
    Schedule,
    ScheduleDatabase,
    StoredModel,
    StoredToken,
    Task,
    Worker,
)

__all__ = [
    "Accuracy",
    "AccuracyComparison",
    "BestSchedules",
    "Build",
    "Client",
    "ClientError",
    "CostModelReport",
    "DeviceClass",
    "ExportedRecord",
    "ExportedWorkload",
    "HeldOutAccuracy",
    "ImportResult",
    "ImportsDeleted",
    "Job",
    "JobEvent",
    "JobRequest",
    "JobState",
    "NewToken",
    "ProblemError",
    "Schedule",
    "ScheduleCache",
    "ScheduleDatabase",
    "Scope",
    "StoredModel",
    "StoredToken",
    "Task",
    "TlsError",
    "TlsFiles",
    "UnreachableError",
    "Worker",
]
