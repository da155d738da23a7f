"""The figures of a fuzzing run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.results.figures import Figure, at_least, at_most, figure
from tests.fuzz import fleet, imports, uploads
from tests.fuzz.service import Growth

# One object leaked per message takes this much. The noise of allocators is less.
MAX_GROWTH_KIB = 256.0
# Database connections come and go, with three files each. A leak of a file a thousand messages is more.
MAX_NEW_FILES = 64
# The importing process's limit for a small file, besides TVM.
MAX_IMPORT_MIB = 1024.0
MIB = 1 << 20


@dataclass
class FuzzResult:
    """The outcome of a fuzzing run.

    By kind of message: `asked` is the requested number of messages, `answers` counts the answers, `growth` is
    the server's growth. `failures` counts by kind of failure. After each kind, `served` of the `tried` valid
    workers got work.
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
        figure("messages", answers.total(), "", subject="gRPC", note=_listed(answers)),
        figure("statuses that fleet.proto doesn't name", failures, "", subject="gRPC", aim=at_most(0)),
    ]


def _of_uploads(found: FuzzResult) -> list[Figure]:
    answers = found.answers[uploads.KIND]
    errors = _count_failures(found, f"{uploads.KIND} 5")
    others = _count_failures(found, uploads.KIND) - errors
    return [
        figure("uploads", answers.total(), "", subject="HTTP", note=_listed(answers)),
        figure("responses 5xx", errors, "", subject="HTTP", aim=at_most(0)),
        figure("responses but 201 and problem documents", others, "", subject="HTTP", aim=at_most(0)),
    ]


def _of_server(found: FuzzResult) -> list[Figure]:
    figures = [
        figure("times it ended", found.server_ended, "", subject="server", aim=at_most(0)),
        figure(
            "workers served afterwards",
            found.served,
            f"of {found.tried}",
            subject="server",
            aim=at_least(found.tried),
        ),
    ]
    for kind, growth in found.growth.items():
        if not growth.messages:  # it had ended before
            continue
        slope = growth.bytes_per_message * 1000 / 1024
        note = f"from {growth.memory_bytes[0] / MIB:.0f} to {growth.memory_bytes[-1] / MIB:.0f} MiB"
        figures += [
            figure(
                "growth of memory with 1,000 messages",
                slope,
                "KiB",
                subject="server",
                condition=kind,
                aim=at_most(MAX_GROWTH_KIB),
                note=note,
            ),
            figure(
                "growth of open files",
                growth.new_files,
                "",
                subject="server",
                condition=kind,
                aim=at_most(MAX_NEW_FILES),
            ),
        ]
    return figures


def _of_imports(found: FuzzResult) -> list[Figure]:
    answers = found.answers[imports.KIND]
    endings = {"crashes": "crashed", "hangs": "hung", "errors that are not ours": "untyped"}
    return [
        figure("files", answers.total(), "", subject="ONNX import", note=_listed(answers)),
        *(
            figure(
                name,
                _count_failures(found, f"{imports.KIND} {how}"),
                "",
                subject="ONNX import",
                aim=at_most(0),
            )
            for name, how in endings.items()
        ),
        figure(
            "most memory taken",
            found.import_bytes / MIB,
            "MiB",
            subject="ONNX import",
            aim=at_most(MAX_IMPORT_MIB),
        ),
    ]


def _count_failures(found: FuzzResult, start: str) -> int:
    return sum(count for kind, count in found.failures.items() if kind.startswith(start))


def _listed(answers: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in answers.most_common())
