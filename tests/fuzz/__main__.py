"""Send many invalid messages, and look for 5xx answers, crashes and leaks.

    python -m tests.fuzz --quick --json FILE

Raw bytes go to every gRPC method of a real server process. Files go to its upload route and to the ONNX
importer in a separate process. All of them are drawn from a seed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from benchmarks.arguments import command_parser
from benchmarks.results.output import Output
from tests.fuzz import fleet, imports, uploads
from tests.fuzz.failures import Failures
from tests.fuzz.figures import FuzzResult, figures_of
from tests.fuzz.imports import ImporterError, importing
from tests.fuzz.service import Growth, Service, ServiceError, running
from worker.settings import usable_cores

SENDERS: Mapping[str, Callable[[Service, Failures, Growth], fleet.Sender | uploads.Uploader]] = {
    fleet.KIND: fleet.Sender,
    uploads.KIND: uploads.Uploader,
}
COUNTS = {fleet.KIND: 80_000, uploads.KIND: 14_000, imports.KIND: 6_000}
QUICK_SHARE = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if an answer was wrong or a process can't be started."""
    args = _parser().parse_args(argv)
    output = Output("tests.fuzz", argv, args.json, usable_cores())
    share = QUICK_SHARE if args.quick else 1
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
    failures = Failures(output.say, args.keep)
    try:
        found = fuzz({kind: count // share for kind, count in COUNTS.items()}, args.seed, failures)
    except (ServiceError, ImporterError) as error:
        output.fail(error)
        return 1
    all_figures = figures_of(found)
    output.finish(all_figures)
    return int(any(each.reached is False for each in all_figures))


def fuzz(counts: Mapping[str, int], seed: int, failures: Failures) -> FuzzResult:
    """Send `counts` messages of each kind. Raises ServiceError, ImporterError."""
    found = FuzzResult(counts, failures=failures.kinds)
    with tempfile.TemporaryDirectory(prefix="tunefarm-fuzz-") as folder, running(Path(folder)) as service:
        _fuzz_service(service, found, seed, failures)
        found.server_ended = int(service.ended())
    with importing() as importer:
        count = counts[imports.KIND]
        found.answers[imports.KIND] = imports.send(importer, count, _rng(seed, imports.KIND), failures)
        found.import_bytes = importer.most_taken_bytes
    return found


def _fuzz_service(service: Service, found: FuzzResult, seed: int, failures: Failures) -> None:
    """Send the kinds of messages in order, until the server ends."""
    for batch, (kind, make) in enumerate(SENDERS.items(), 2):
        growth = found.growth[kind] = Growth()
        sender = make(service, failures, growth)
        sender.send(found.asked[kind], _rng(seed, kind))
        found.answers[kind] = sender.answers
        found.tried += 1
        found.served += not service.ended() and fleet.is_served(service, batch)


def _rng(seed: int, kind: str) -> Random:
    return Random(f"{seed} {kind}")


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("tests.fuzz", __doc__, f"a {QUICK_SHARE}th of the messages")
    parser.add_argument("--seed", type=int, default=0, help="of all messages [0]")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep messages that are answered wrongly")
    return parser


if __name__ == "__main__":
    sys.exit(main())
