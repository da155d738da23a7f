"""Compare the time that jobs were said to take with the time that they took, replayed on recordings.

    python -m benchmarks.time_left docs/benchmarks/recording.recordings.jsonl --json FILE

After every batch of a recorded job, `scheduler.planning.forecast` predicts when its model will be published.
The job's recorded trials are its budget. The peer is the rate of the last minute, which jobs reported before,
even when little of it was search.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.arguments import command_parser
from benchmarks.results.figures import Figure, FiguresError, at_most, figure
from benchmarks.results.output import Output
from benchmarks.results.recordings import Recording, read_recordings
from core.job import Budget
from records.jobs.trials import Pace
from scheduler.planning.forecast import seconds_left
from scheduler.settings import SchedulerSettings
from scheduler.steps.rounds import PUBLISHING_RATIO
from worker.settings import usable_cores

BATCH: int = SchedulerSettings.model_fields["batch_size"].default
AIM = at_most(0.25)
MINUTE_S = 60.0
# When the time left was told.
EARLY, LATE = "after the first batch", "after a third of the job or later"
LARGEST_ERROR = "largest error of the time left"


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_parser("benchmarks.time_left", __doc__)
    parser.add_argument(
        "recordings", type=Path, metavar="RECORDINGS", help="kept beside the figures of benchmarks.recording"
    )
    args = parser.parse_args(argv)
    output = Output("benchmarks.time_left", argv, args.json, usable_cores())
    try:
        recordings = read_recordings(args.recordings)
    except FiguresError as error:
        output.fail(error)
        return 1
    output.finish(figures_of(recordings))
    return 0


def figures_of(recordings: Sequence[Recording]) -> list[Figure]:
    """Return the errors of the forecasts after a third of each job and later, and after its first batch."""
    found: list[Figure] = []
    largest = []
    for recording in recordings:
        told = list(_forecasts(recording))
        took_s = recording.importing_s + recording.search_s + recording.publishing_s
        late = [abs(error) for at_s, error, _ in told if at_s >= took_s / 3]
        _, first, first_by_rate = told[0]
        largest.append(max(late))
        network, rate = recording.network, "error of the last minute's rate"
        found += [
            figure(LARGEST_ERROR, max(late), "", subject=network, condition=LATE),
            figure(
                "median error of the time left", statistics.median(late), "", subject=network, condition=LATE
            ),
            figure("error of the time left", abs(first), "", subject=network, condition=EARLY),
            figure(rate, abs(first_by_rate), "", subject=network, condition=EARLY),
        ]
    networks = ", ".join(recording.network for recording in recordings)
    every = figure(
        LARGEST_ERROR, max(largest), "", subject="all networks", condition=LATE, aim=AIM, note=networks
    )
    return [*found, every]


def _forecasts(recording: Recording) -> Iterator[tuple[float, float, float]]:
    """Yield the seconds since the job began and two errors, for every batch but the last.

    These are the errors of the forecast and of the last minute's rate, as fractions of the remaining time.
    """
    finished = [trial.at_s for trial in recording.trials]
    total = len(finished)
    for done in range(BATCH, total - BATCH + 1, BATCH):
        now = finished[done - 1]
        truth = recording.search_s + recording.publishing_s - now
        search_s = seconds_left(
            Budget(total),
            total - done,
            Pace.of(finished[:done]),
            (),
            began_at=0.0,
            now=now,
        )
        assert search_s is not None, "a batch is enough to tell"
        told = search_s + PUBLISHING_RATIO * recording.importing_s
        since = max(now - MINUTE_S, -recording.importing_s)
        rate = sum(since < at_s <= now for at_s in finished) / (now - since)
        before = (total - done) / rate
        yield recording.importing_s + now, told / truth - 1, before / truth - 1


if __name__ == "__main__":
    sys.exit(main())
