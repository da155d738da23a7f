from proto import fleet_pb2 as _fleet_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChildRequest(_message.Message):
    __slots__ = ("memory_bytes", "cpu_s", "build", "run", "export", "measure_module", "measure_onnx", "calibrate_budget_s", "infer_path", "call_module")
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    MEASURE_MODULE_FIELD_NUMBER: _ClassVar[int]
    MEASURE_ONNX_FIELD_NUMBER: _ClassVar[int]
    CALIBRATE_BUDGET_S_FIELD_NUMBER: _ClassVar[int]
    INFER_PATH_FIELD_NUMBER: _ClassVar[int]
    CALL_MODULE_FIELD_NUMBER: _ClassVar[int]
    memory_bytes: int
    cpu_s: float
    build: BuildCandidates
    run: RunCandidate
    export: int
    measure_module: MeasureModule
    measure_onnx: MeasureOnnx
    calibrate_budget_s: float
    infer_path: str
    call_module: CallModule
    def __init__(self, memory_bytes: _Optional[int] = ..., cpu_s: _Optional[float] = ..., build: _Optional[_Union[BuildCandidates, _Mapping]] = ..., run: _Optional[_Union[RunCandidate, _Mapping]] = ..., export: _Optional[int] = ..., measure_module: _Optional[_Union[MeasureModule, _Mapping]] = ..., measure_onnx: _Optional[_Union[MeasureOnnx, _Mapping]] = ..., calibrate_budget_s: _Optional[float] = ..., infer_path: _Optional[str] = ..., call_module: _Optional[_Union[CallModule, _Mapping]] = ...) -> None: ...

class BuildCandidates(_message.Message):
    __slots__ = ("candidates",)
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    candidates: _containers.RepeatedCompositeFieldContainer[CandidateBuild]
    def __init__(self, candidates: _Optional[_Iterable[_Union[CandidateBuild, _Mapping]]] = ...) -> None: ...

class CandidateBuild(_message.Message):
    __slots__ = ("number", "target", "module_json", "trace", "constants", "library", "export", "model_bytes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MODULE_JSON_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    LIBRARY_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    MODEL_BYTES_FIELD_NUMBER: _ClassVar[int]
    number: int
    target: str
    module_json: str
    trace: str
    constants: _containers.RepeatedScalarFieldContainer[int]
    library: str
    export: bool
    model_bytes: int
    def __init__(self, number: _Optional[int] = ..., target: _Optional[str] = ..., module_json: _Optional[str] = ..., trace: _Optional[str] = ..., constants: _Optional[_Iterable[int]] = ..., library: _Optional[str] = ..., export: _Optional[bool] = ..., model_bytes: _Optional[int] = ...) -> None: ...

class RunCandidate(_message.Message):
    __slots__ = ("number", "best_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BEST_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    best_s: float
    def __init__(self, number: _Optional[int] = ..., best_s: _Optional[float] = ...) -> None: ...

class MeasureModule(_message.Message):
    __slots__ = ("path", "compare")
    PATH_FIELD_NUMBER: _ClassVar[int]
    COMPARE_FIELD_NUMBER: _ClassVar[int]
    path: str
    compare: bool
    def __init__(self, path: _Optional[str] = ..., compare: _Optional[bool] = ...) -> None: ...

class CallModule(_message.Message):
    __slots__ = ("path", "seconds")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    path: str
    seconds: float
    def __init__(self, path: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class MeasureOnnx(_message.Message):
    __slots__ = ("path", "shapes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    path: str
    shapes: str
    def __init__(self, path: _Optional[str] = ..., shapes: _Optional[str] = ...) -> None: ...

class ChildReply(_message.Message):
    __slots__ = ("grown_bytes", "ready", "unusable", "begun", "ended", "refused", "measurement", "exported", "profile", "failed", "inferred", "calls")
    GROWN_BYTES_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    INFERRED_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    grown_bytes: int
    ready: Ready
    unusable: str
    begun: int
    ended: int
    refused: RefusedCandidates
    measurement: _fleet_pb2.Measurement
    exported: ExportedCandidate
    profile: str
    failed: str
    inferred: Inferred
    calls: Calls
    def __init__(self, grown_bytes: _Optional[int] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., unusable: _Optional[str] = ..., begun: _Optional[int] = ..., ended: _Optional[int] = ..., refused: _Optional[_Union[RefusedCandidates, _Mapping]] = ..., measurement: _Optional[_Union[_fleet_pb2.Measurement, _Mapping]] = ..., exported: _Optional[_Union[ExportedCandidate, _Mapping]] = ..., profile: _Optional[str] = ..., failed: _Optional[str] = ..., inferred: _Optional[_Union[Inferred, _Mapping]] = ..., calls: _Optional[_Union[Calls, _Mapping]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("device", "sandbox_gaps", "platforms", "platform_problems")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_GAPS_FIELD_NUMBER: _ClassVar[int]
    PLATFORMS_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    device: _fleet_pb2.Device
    sandbox_gaps: _containers.RepeatedScalarFieldContainer[str]
    platforms: _containers.RepeatedScalarFieldContainer[str]
    platform_problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, device: _Optional[_Union[_fleet_pb2.Device, _Mapping]] = ..., sandbox_gaps: _Optional[_Iterable[str]] = ..., platforms: _Optional[_Iterable[str]] = ..., platform_problems: _Optional[_Iterable[str]] = ...) -> None: ...

class RefusedCandidates(_message.Message):
    __slots__ = ("numbers",)
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class Inferred(_message.Message):
    __slots__ = ("data", "run_s")
    DATA_FIELD_NUMBER: _ClassVar[int]
    RUN_S_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    run_s: float
    def __init__(self, data: _Optional[bytes] = ..., run_s: _Optional[float] = ...) -> None: ...

class Calls(_message.Message):
    __slots__ = ("began_s", "ended_s", "count")
    BEGAN_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    began_s: float
    ended_s: float
    count: int
    def __init__(self, began_s: _Optional[float] = ..., ended_s: _Optional[float] = ..., count: _Optional[int] = ...) -> None: ...

class ExportedCandidate(_message.Message):
    __slots__ = ("data", "build_s")
    DATA_FIELD_NUMBER: _ClassVar[int]
    BUILD_S_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    build_s: float
    def __init__(self, data: _Optional[bytes] = ..., build_s: _Optional[float] = ...) -> None: ...
