"""The figures of a fuzzing run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.results.figures import Figure, at_least, at_most, figure
from tests.fuzz import fleet, imports, uploads
from tests.fuzz.service import Growth

# One object kept for each message takes that much; the noise of allocators is less.
MAX_GROWTH_KIB = 256.0
# Database connections come and go, with three files each. A leak of a file a thousand messages is more.
MAX_NEW_FILES = 64
# For the importing process, besides TVM: the limit that it gets for a small file.
MAX_IMPORT_MIB = 1024.0
MIB = 1 << 20


@dataclass
class FuzzResult:
    """The outcome of a fuzzing run.

    By kind of message: `asked` is how many were to be sent, `answers` counts the answers, `growth` is the
    server's. `failures` are counted by kind of failure. `served` of the `tried` valid workers got work after
    each kind.
    """

    asked: Mapping[str, int]
    answers: dict[str, Counter[str]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    growth: dict[str, Growth] = field(default_factory=dict)
    served: int = 0
    tried: int = 0
    server_ended: int = 0
    import_bytes: int = 0

    @property
    def sent(self) -> int:
        return sum(counts.total() for counts in self.answers.values())


def figures_of(found: FuzzResult) -> list[Figure]:
    """Return the figures of all messages first, then of each kind."""
    asked = sum(found.asked.values())
    return [
        figure("messages sent", found.sent, "", aim=at_least(asked)),
        *_of_fleet(found),
        *_of_uploads(found),
        *_of_server(found),
        *_of_imports(found),
    ]


def _of_fleet(found: FuzzResult) -> list[Figure]:
    answers = found.answers[fleet.KIND]
    failures = _count_failures(found, fleet.KIND)
    return [
        figure("gRPC: messages", answers.total(), "", peer=_listed(answers)),
        figure("gRPC: statuses that fleet.proto doesn't name", failures, "", aim=at_most(0)),
    ]


def _of_uploads(found: FuzzResult) -> list[Figure]:
    answers = found.answers[uploads.KIND]
    errors = _count_failures(found, f"{uploads.KIND} 5")
    others = _count_failures(found, uploads.KIND) - errors
    return [
        figure("HTTP: uploads", answers.total(), "", peer=_listed(answers)),
        figure("HTTP: answers 5xx", errors, "", aim=at_most(0)),
        figure("HTTP: other answers than 201 and problem documents", others, "", aim=at_most(0)),
    ]


def _of_server(found: FuzzResult) -> list[Figure]:
    figures = [
        figure("server: times it ended", found.server_ended, "", aim=at_most(0)),
        figure(
            "server: workers served afterwards", found.served, f"of {found.tried}", aim=at_least(found.tried)
        ),
    ]
    for kind, growth in found.growth.items():
        if not growth.messages:  # it had ended before
            continue
        slope = growth.bytes_per_message * 1000 / 1024
        peer = f"from {growth.memory_bytes[0] / MIB:.0f} to {growth.memory_bytes[-1] / MIB:.0f} MiB"
        figures += [
            figure(
                f"server: memory for 1,000 messages more, {kind}",
                slope,
                "KiB",
                aim=at_most(MAX_GROWTH_KIB),
                peer=peer,
            ),
            figure(
                f"server: open files more at the end, {kind}",
                growth.new_files,
                "",
                aim=at_most(MAX_NEW_FILES),
            ),
        ]
    return figures


def _of_imports(found: FuzzResult) -> list[Figure]:
    answers = found.answers[imports.KIND]
    endings = {"crashes": "crashed", "hangs": "hung", "errors that are not ours": "untyped"}
    return [
        figure("ONNX import: files", answers.total(), "", peer=_listed(answers)),
        *(
            figure(
                f"ONNX import: {name}", _count_failures(found, f"{imports.KIND} {how}"), "", aim=at_most(0)
            )
            for name, how in endings.items()
        ),
        figure(
            "ONNX import: most memory taken", found.import_bytes / MIB, "MiB", aim=at_most(MAX_IMPORT_MIB)
        ),
    ]


def _count_failures(found: FuzzResult, start: str) -> int:
    return sum(count for kind, count in found.failures.items() if kind.startswith(start))


def _listed(answers: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in answers.most_common())
