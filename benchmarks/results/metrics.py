"""Names of metrics and conditions: benchmarks write them into figures, and the report reads them."""

from __future__ import annotations

LATENCY = "latency"
# Ratios of the peer's latency, or seconds of tuning, to ours: above 1, ours is faster.
SPEED_UP = "speed-up"
TUNING_SPEED_UP = "tuning speed-up"
LOWEST_SPEED_UP = "lowest speed-up"
NEVER_REACHED = "searches that never reached MetaSchedule's result"
TRIALS = "trials"
TRIALS_A_SECOND = "trials a second"
TOTAL_TIME = "time from start to finish"
TIME_TO_ARTIFACT = "time from upload to artifact"
WITHOUT_TRIALS, ONE_TRIAL = "without trials", "after a trial for each subgraph"
BESIDE_BUSY, AFTER_BUSY = (
    "beside a process that uses a core for a third of the time",
    "after that process ended",
)
FASTEST_PEER = "the fastest peer"
MACHINE_LIMIT = "the machine's limit"
ALL_SUBGRAPHS = "all subgraphs"
# Between a network's name and its batch size, in the name of a network at a batch size above 1.
BATCH = "-batch-"
PEAK, BANDWIDTH = "calibrated peak", "memory bandwidth"
LARGEST_DIFFERENCE = "largest difference"
TUNED_TOGETHER = "latency tuned together"
RIGHT_NETWORKS = "networks that are right"
TUNED_SHARE = "share of run time in tuned subgraphs"
TRIALS_STORED, CORES_USED = "trials stored", "cores used"
GROWTH, MEAN_LEVEL = "growth in the second half", "mean in the second half"


def after_trials(count: int) -> str:
    return f"after {count} trial" + ("s" if count != 1 else "")


def to_reach(trials: int) -> str:
    return f"time to reach its {trials}-trial result"
