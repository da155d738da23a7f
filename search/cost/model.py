"""The learned cost model: gradient-boosted trees that correct the analytic estimate.

The trees predict log(measured / analytic seconds), the error of the estimate. So a few records already help,
and without records the model is the estimate.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import xgboost
from numpy.typing import NDArray

from search.cost.estimate import Estimate
from search.cost.features import FEATURES_VERSION
from search.programs.nest import Floats

# Replaces the digest of a profile that was assumed, not measured.
ASSUMED = "assumed"
MIN_RECORDS = 16
DIGEST_BYTES = hashlib.sha256().digest_size
ROUNDS = 60
PARAMETERS = {
    "max_depth": 6,
    "eta": 0.15,
    "min_child_weight": 1.0,
    "lambda": 2.0,
    "subsample": 0.9,
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "verbosity": 0,
    "seed": 0,
    "nthread": 1,
}
# A failed trial counts as this multiple of its task's best latency, slower than any trial that ran.
FAILURE_FACTOR = 20.0


@dataclass(frozen=True)
class Examples:
    """Training data: features [records, NUM_FEATURES], analytic and measured seconds [records] (inf for a
    failure), and the task each record belongs to [records]."""

    features: NDArray[np.float32]
    analytic_s: Floats
    measured_s: Floats
    task: NDArray[np.int64]


class CostModel:
    """Predicts seconds. Without a booster, the predictions are the analytic estimates."""

    def __init__(self, booster: xgboost.Booster | None = None) -> None:
        self._booster = booster

    @classmethod
    def train(cls, examples: Examples) -> CostModel:
        """Train a model on examples weighted by throughput, as in the paper. Return the analytic model if too
        few ran.
        """
        if np.isfinite(examples.measured_s).sum() < MIN_RECORDS:
            return cls()
        best = _best_of_task(examples)
        measured = np.where(np.isfinite(examples.measured_s), examples.measured_s, best * FAILURE_FACTOR)
        data = xgboost.DMatrix(
            examples.features,
            label=np.log(measured / examples.analytic_s),
            weight=np.maximum(best / measured, 0.05),
            nthread=1,
        )
        booster = xgboost.train(PARAMETERS, data, num_boost_round=ROUNDS)
        booster.set_attr(features=FEATURES_VERSION)
        return cls(booster)

    @property
    def is_learned(self) -> bool:
        """Whether the model has trees."""
        return self._booster is not None

    def to_bytes(self, profile: str = ASSUMED) -> bytes:
        """Return a digest and XGBoost's binary JSON; b"" for the analytic model. `profile` is the digest of
        the device's profile, on which the estimate and the features depend.
        """
        if self._booster is None:
            return b""
        self._booster.set_attr(profile=profile)
        saved = bytes(self._booster.save_raw("ubj"))
        return hashlib.sha256(saved).digest() + saved

    @classmethod
    def from_bytes(cls, data: bytes, profile: str = ASSUMED) -> CostModel:
        """Return the model that `to_bytes` wrote. Raises ValueError for other bytes, other features or
        another profile.
        """
        if not data:
            return cls()
        digest, saved = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
        # XGBoost may crash the process on truncated bytes.
        if hashlib.sha256(saved).digest() != digest:
            raise ValueError("these bytes hold no model")
        booster = xgboost.Booster(PARAMETERS, model_file=bytearray(saved))
        if booster.attr("features") != FEATURES_VERSION:
            raise ValueError("a model of other features")
        if (booster.attr("profile") or ASSUMED) != profile:
            raise ValueError("the device has been calibrated since")
        return cls(booster)

    def predict(self, features: NDArray[np.float32], estimate: Estimate) -> Floats:
        """Predict the seconds [programs]."""
        if self._booster is None or len(features) == 0:
            return estimate.seconds
        correction = np.asarray(self._booster.inplace_predict(features), dtype=np.float64)
        return np.asarray(estimate.seconds * np.exp(correction))


def _best_of_task(examples: Examples) -> Floats:
    """Return the best seconds of each record's task. If none of its programs ran, return the median of all
    tasks."""
    ran = np.isfinite(examples.measured_s)
    best = np.full(examples.task.max() + 1, np.inf)
    np.minimum.at(best, examples.task[ran], examples.measured_s[ran])
    best[np.isinf(best)] = np.median(examples.measured_s[ran])
    return best[examples.task]
