# ruff: noqa: N802 - names are those of fleet.proto
"""Types of the generated service stubs (grpcio-tools writes none). Kept in step by a test."""

from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import grpc
import grpc.aio

from proto import fleet_pb2

class FleetStub:
    """Blocking calls, over a `grpc.Channel`."""

    Synchronize: grpc.UnaryUnaryMultiCallable[fleet_pb2.SynchronizeRequest, fleet_pb2.SynchronizeResponse]
    GetWorkload: grpc.UnaryUnaryMultiCallable[fleet_pb2.WorkloadRequest, fleet_pb2.Workload]
    GetBlob: grpc.UnaryStreamMultiCallable[fleet_pb2.BlobRequest, fleet_pb2.Chunk]
    PutLibrary: grpc.UnaryUnaryMultiCallable[fleet_pb2.Library, fleet_pb2.LibraryStored]
    PutOutputs: grpc.UnaryUnaryMultiCallable[fleet_pb2.Outputs, fleet_pb2.OutputsStored]

    def __init__(self, channel: grpc.Channel) -> None: ...

class FleetServicer:
    """A service over `grpc.aio`, or over `grpc` with plain methods."""

    def Synchronize(
        self, request: fleet_pb2.SynchronizeRequest, context: Any
    ) -> fleet_pb2.SynchronizeResponse | Awaitable[fleet_pb2.SynchronizeResponse]: ...
    def GetWorkload(
        self, request: fleet_pb2.WorkloadRequest, context: Any
    ) -> fleet_pb2.Workload | Awaitable[fleet_pb2.Workload]: ...
    def GetBlob(
        self, request: fleet_pb2.BlobRequest, context: Any
    ) -> Iterator[fleet_pb2.Chunk] | AsyncIterator[fleet_pb2.Chunk]: ...
    def PutLibrary(
        self, request: fleet_pb2.Library, context: Any
    ) -> fleet_pb2.LibraryStored | Awaitable[fleet_pb2.LibraryStored]: ...
    def PutOutputs(
        self, request: fleet_pb2.Outputs, context: Any
    ) -> fleet_pb2.OutputsStored | Awaitable[fleet_pb2.OutputsStored]: ...

def add_FleetServicer_to_server(servicer: FleetServicer, server: grpc.Server | grpc.aio.Server) -> None: ...
