from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_PROBING: _ClassVar[WorkerState]
    WORKER_STATE_READY: _ClassVar[WorkerState]
    WORKER_STATE_BUSY: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_OFFLINE: _ClassVar[WorkerState]

class WorkerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_ROLE_MEASURE: _ClassVar[WorkerRole]
    WORKER_ROLE_BUILD: _ClassVar[WorkerRole]

class DesiredState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DESIRED_STATE_WORK: _ClassVar[DesiredState]
    DESIRED_STATE_DRAIN: _ClassVar[DesiredState]
    DESIRED_STATE_EVICTED: _ClassVar[DesiredState]
    DESIRED_STATE_UPDATE: _ClassVar[DesiredState]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNKNOWN: _ClassVar[Outcome]
    OUTCOME_OK: _ClassVar[Outcome]
    OUTCOME_BUILD_ERROR: _ClassVar[Outcome]
    OUTCOME_BUILD_TIMEOUT: _ClassVar[Outcome]
    OUTCOME_RUN_ERROR: _ClassVar[Outcome]
    OUTCOME_RUN_TIMEOUT: _ClassVar[Outcome]
    OUTCOME_WRONG_RESULT: _ClassVar[Outcome]
    OUTCOME_DEVICE_LOST: _ClassVar[Outcome]
    OUTCOME_OUT_OF_MEMORY: _ClassVar[Outcome]
    OUTCOME_ILLEGAL_ACCESS: _ClassVar[Outcome]
    OUTCOME_LAUNCH_ERROR: _ClassVar[Outcome]
    OUTCOME_SPILLED: _ClassVar[Outcome]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_PROBING: WorkerState
WORKER_STATE_READY: WorkerState
WORKER_STATE_BUSY: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_OFFLINE: WorkerState
WORKER_ROLE_MEASURE: WorkerRole
WORKER_ROLE_BUILD: WorkerRole
DESIRED_STATE_WORK: DesiredState
DESIRED_STATE_DRAIN: DesiredState
DESIRED_STATE_EVICTED: DesiredState
DESIRED_STATE_UPDATE: DesiredState
OUTCOME_UNKNOWN: Outcome
OUTCOME_OK: Outcome
OUTCOME_BUILD_ERROR: Outcome
OUTCOME_BUILD_TIMEOUT: Outcome
OUTCOME_RUN_ERROR: Outcome
OUTCOME_RUN_TIMEOUT: Outcome
OUTCOME_WRONG_RESULT: Outcome
OUTCOME_DEVICE_LOST: Outcome
OUTCOME_OUT_OF_MEMORY: Outcome
OUTCOME_ILLEGAL_ACCESS: Outcome
OUTCOME_LAUNCH_ERROR: Outcome
OUTCOME_SPILLED: Outcome

class SynchronizeRequest(_message.Message):
    __slots__ = ("protocol", "worker_id", "session_id", "starting", "state", "device", "held", "results", "slots", "wait_s", "vitals", "role", "builds_for", "calibrated", "boot_id", "hardware")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STARTING_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    VITALS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    BUILDS_FOR_FIELD_NUMBER: _ClassVar[int]
    CALIBRATED_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    worker_id: str
    session_id: str
    starting: bool
    state: WorkerState
    device: Device
    held: LeaseId
    results: _containers.RepeatedCompositeFieldContainer[Result]
    slots: int
    wait_s: float
    vitals: Vitals
    role: WorkerRole
    builds_for: _containers.RepeatedScalarFieldContainer[str]
    calibrated: bool
    boot_id: str
    hardware: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol: _Optional[int] = ..., worker_id: _Optional[str] = ..., session_id: _Optional[str] = ..., starting: _Optional[bool] = ..., state: _Optional[_Union[WorkerState, str]] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., held: _Optional[_Union[LeaseId, _Mapping]] = ..., results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., slots: _Optional[int] = ..., wait_s: _Optional[float] = ..., vitals: _Optional[_Union[Vitals, _Mapping]] = ..., role: _Optional[_Union[WorkerRole, str]] = ..., builds_for: _Optional[_Iterable[str]] = ..., calibrated: _Optional[bool] = ..., boot_id: _Optional[str] = ..., hardware: _Optional[_Iterable[str]] = ...) -> None: ...

class Vitals(_message.Message):
    __slots__ = ("tunefarm_version", "tvm_version", "load", "temperature_c", "memory_free_bytes", "candidates", "candidates_done", "sandbox_gaps", "health_error", "power_w", "driver", "onnxruntime_version", "infers")
    TUNEFARM_VERSION_FIELD_NUMBER: _ClassVar[int]
    TVM_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_DONE_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_GAPS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_ERROR_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    ONNXRUNTIME_VERSION_FIELD_NUMBER: _ClassVar[int]
    INFERS_FIELD_NUMBER: _ClassVar[int]
    tunefarm_version: str
    tvm_version: str
    load: float
    temperature_c: float
    memory_free_bytes: int
    candidates: int
    candidates_done: int
    sandbox_gaps: str
    health_error: str
    power_w: float
    driver: str
    onnxruntime_version: str
    infers: bool
    def __init__(self, tunefarm_version: _Optional[str] = ..., tvm_version: _Optional[str] = ..., load: _Optional[float] = ..., temperature_c: _Optional[float] = ..., memory_free_bytes: _Optional[int] = ..., candidates: _Optional[int] = ..., candidates_done: _Optional[int] = ..., sandbox_gaps: _Optional[str] = ..., health_error: _Optional[str] = ..., power_w: _Optional[float] = ..., driver: _Optional[str] = ..., onnxruntime_version: _Optional[str] = ..., infers: _Optional[bool] = ...) -> None: ...

class SynchronizeResponse(_message.Message):
    __slots__ = ("fenced", "lease", "acknowledged", "call_again_after_s", "desired_state", "calibrate", "service_version")
    FENCED_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    CALL_AGAIN_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    DESIRED_STATE_FIELD_NUMBER: _ClassVar[int]
    CALIBRATE_FIELD_NUMBER: _ClassVar[int]
    SERVICE_VERSION_FIELD_NUMBER: _ClassVar[int]
    fenced: bool
    lease: Lease
    acknowledged: _containers.RepeatedScalarFieldContainer[int]
    call_again_after_s: float
    desired_state: DesiredState
    calibrate: bool
    service_version: str
    def __init__(self, fenced: _Optional[bool] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., acknowledged: _Optional[_Iterable[int]] = ..., call_again_after_s: _Optional[float] = ..., desired_state: _Optional[_Union[DesiredState, str]] = ..., calibrate: _Optional[bool] = ..., service_version: _Optional[str] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("name", "triple", "mcpu", "features", "cores", "vector_bytes", "l1_bytes", "l2_bytes", "l3_bytes", "toolchain", "target", "gpu", "profile")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TRIPLE_FIELD_NUMBER: _ClassVar[int]
    MCPU_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    VECTOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    L1_BYTES_FIELD_NUMBER: _ClassVar[int]
    L2_BYTES_FIELD_NUMBER: _ClassVar[int]
    L3_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOOLCHAIN_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    name: str
    triple: str
    mcpu: str
    features: _containers.RepeatedScalarFieldContainer[str]
    cores: int
    vector_bytes: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    toolchain: str
    target: str
    gpu: Gpu
    profile: str
    def __init__(self, name: _Optional[str] = ..., triple: _Optional[str] = ..., mcpu: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., cores: _Optional[int] = ..., vector_bytes: _Optional[int] = ..., l1_bytes: _Optional[int] = ..., l2_bytes: _Optional[int] = ..., l3_bytes: _Optional[int] = ..., toolchain: _Optional[str] = ..., target: _Optional[str] = ..., gpu: _Optional[_Union[Gpu, _Mapping]] = ..., profile: _Optional[str] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("max_threads", "warp_size", "shared_bytes", "registers", "capability", "model", "resident_threads", "resident_blocks", "resident_shared_bytes", "cuda", "dynamic_shared_bytes", "timing")
    MAX_THREADS_FIELD_NUMBER: _ClassVar[int]
    WARP_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REGISTERS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_THREADS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CUDA_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    max_threads: int
    warp_size: int
    shared_bytes: int
    registers: int
    capability: int
    model: str
    resident_threads: int
    resident_blocks: int
    resident_shared_bytes: int
    cuda: str
    dynamic_shared_bytes: int
    timing: int
    def __init__(self, max_threads: _Optional[int] = ..., warp_size: _Optional[int] = ..., shared_bytes: _Optional[int] = ..., registers: _Optional[int] = ..., capability: _Optional[int] = ..., model: _Optional[str] = ..., resident_threads: _Optional[int] = ..., resident_blocks: _Optional[int] = ..., resident_shared_bytes: _Optional[int] = ..., cuda: _Optional[str] = ..., dynamic_shared_bytes: _Optional[int] = ..., timing: _Optional[int] = ...) -> None: ...

class LeaseId(_message.Message):
    __slots__ = ("id", "attempt")
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    id: str
    attempt: int
    def __init__(self, id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("id", "target", "candidates", "limits", "expires_after_s", "build", "module_runs", "trace_parent", "model_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    MODULE_RUNS_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: LeaseId
    target: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    limits: Limits
    expires_after_s: float
    build: bool
    module_runs: _containers.RepeatedCompositeFieldContainer[ModuleRun]
    trace_parent: str
    model_bytes: int
    def __init__(self, id: _Optional[_Union[LeaseId, _Mapping]] = ..., target: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., expires_after_s: _Optional[float] = ..., build: _Optional[bool] = ..., module_runs: _Optional[_Iterable[_Union[ModuleRun, _Mapping]]] = ..., trace_parent: _Optional[str] = ..., model_bytes: _Optional[int] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("trial_id", "workload_hash", "trace", "constants", "best_s", "library_sha")
    TRIAL_ID_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_HASH_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    BEST_S_FIELD_NUMBER: _ClassVar[int]
    LIBRARY_SHA_FIELD_NUMBER: _ClassVar[int]
    trial_id: int
    workload_hash: str
    trace: str
    constants: _containers.RepeatedScalarFieldContainer[int]
    best_s: float
    library_sha: str
    def __init__(self, trial_id: _Optional[int] = ..., workload_hash: _Optional[str] = ..., trace: _Optional[str] = ..., constants: _Optional[_Iterable[int]] = ..., best_s: _Optional[float] = ..., library_sha: _Optional[str] = ...) -> None: ...

class ModuleRun(_message.Message):
    __slots__ = ("id", "kind", "artifact_sha", "compare", "shapes")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_SHA_FIELD_NUMBER: _ClassVar[int]
    COMPARE_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    artifact_sha: str
    compare: bool
    shapes: str
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., artifact_sha: _Optional[str] = ..., compare: _Optional[bool] = ..., shapes: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("build_timeout_s", "run_timeout_s", "module_timeout_s", "memory_bytes")
    BUILD_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    RUN_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    MODULE_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    build_timeout_s: float
    run_timeout_s: float
    module_timeout_s: float
    memory_bytes: int
    def __init__(self, build_timeout_s: _Optional[float] = ..., run_timeout_s: _Optional[float] = ..., module_timeout_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Resources(_message.Message):
    __slots__ = ("registers", "spilled_bytes")
    REGISTERS_FIELD_NUMBER: _ClassVar[int]
    SPILLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    registers: int
    spilled_bytes: int
    def __init__(self, registers: _Optional[int] = ..., spilled_bytes: _Optional[int] = ...) -> None: ...

class Measurement(_message.Message):
    __slots__ = ("outcome", "run_s", "build_s", "error", "resources", "footprint", "speed")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    RUN_S_FIELD_NUMBER: _ClassVar[int]
    BUILD_S_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    FOOTPRINT_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    run_s: _containers.RepeatedScalarFieldContainer[float]
    build_s: float
    error: str
    resources: Resources
    footprint: Footprint
    speed: float
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., run_s: _Optional[_Iterable[float]] = ..., build_s: _Optional[float] = ..., error: _Optional[str] = ..., resources: _Optional[_Union[Resources, _Mapping]] = ..., footprint: _Optional[_Union[Footprint, _Mapping]] = ..., speed: _Optional[float] = ...) -> None: ...

class Footprint(_message.Message):
    __slots__ = ("load_s", "memory_bytes", "energy_j")
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENERGY_J_FIELD_NUMBER: _ClassVar[int]
    load_s: float
    memory_bytes: int
    energy_j: float
    def __init__(self, load_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., energy_j: _Optional[float] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("number", "lease", "trial_id", "module_run_id", "measurement", "built")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TRIAL_ID_FIELD_NUMBER: _ClassVar[int]
    MODULE_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    BUILT_FIELD_NUMBER: _ClassVar[int]
    number: int
    lease: LeaseId
    trial_id: int
    module_run_id: int
    measurement: Measurement
    built: Built
    def __init__(self, number: _Optional[int] = ..., lease: _Optional[_Union[LeaseId, _Mapping]] = ..., trial_id: _Optional[int] = ..., module_run_id: _Optional[int] = ..., measurement: _Optional[_Union[Measurement, _Mapping]] = ..., built: _Optional[_Union[Built, _Mapping]] = ...) -> None: ...

class Built(_message.Message):
    __slots__ = ("sha256", "build_s")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    BUILD_S_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    build_s: float
    def __init__(self, sha256: _Optional[str] = ..., build_s: _Optional[float] = ...) -> None: ...

class Library(_message.Message):
    __slots__ = ("session_id", "lease", "trial_id", "sha256", "data")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TRIAL_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    lease: LeaseId
    trial_id: int
    sha256: str
    data: bytes
    def __init__(self, session_id: _Optional[str] = ..., lease: _Optional[_Union[LeaseId, _Mapping]] = ..., trial_id: _Optional[int] = ..., sha256: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class LibraryStored(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: str
    def __init__(self, refused: _Optional[str] = ...) -> None: ...

class Outputs(_message.Message):
    __slots__ = ("session_id", "lease", "module_run_id", "sha256", "data")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    MODULE_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    lease: LeaseId
    module_run_id: int
    sha256: str
    data: bytes
    def __init__(self, session_id: _Optional[str] = ..., lease: _Optional[_Union[LeaseId, _Mapping]] = ..., module_run_id: _Optional[int] = ..., sha256: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class OutputsStored(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: str
    def __init__(self, refused: _Optional[str] = ...) -> None: ...

class WorkloadRequest(_message.Message):
    __slots__ = ("workload_hash",)
    WORKLOAD_HASH_FIELD_NUMBER: _ClassVar[int]
    workload_hash: str
    def __init__(self, workload_hash: _Optional[str] = ...) -> None: ...

class Workload(_message.Message):
    __slots__ = ("workload_hash", "module_json")
    WORKLOAD_HASH_FIELD_NUMBER: _ClassVar[int]
    MODULE_JSON_FIELD_NUMBER: _ClassVar[int]
    workload_hash: str
    module_json: str
    def __init__(self, workload_hash: _Optional[str] = ..., module_json: _Optional[str] = ...) -> None: ...

class BlobRequest(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    def __init__(self, sha256: _Optional[str] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
