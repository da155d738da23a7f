"""The verdict on a subgraph's latency."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.profile import assumed_profile
from core.roofline import Limits, short_verdict, verdict

PROFILE = replace(
    assumed_profile("x86_64", ("avx2", "fma"), 2),
    hertz=1e9,
    multiply_adds={
        "float32": 2.0,
        "int8": 4.0,
        "tensorfloat16": 8.0,
        "tensorfloat32": 8.0,
        "dotbfloat16": 2.5,
    },
    memory_rate_all=10.0,
)
# 2 operations * 8 lanes * 2 per cycle * 1 GHz * 2 cores, and 10 bytes per cycle.
LIMITS = Limits(PROFILE, vector_bytes=32, cores=2)
MATMUL, BYTES, HALVES = (
    "float32[8,8] -> float32[8,8]",
    "int8[8,8] -> int32[8,8]",
    "float16[8,8] -> float16[8,8]",
)


def test_the_peak_of_a_type_depends_on_lanes_and_instructions() -> None:
    assert LIMITS.flops_per_s() == 64e9
    assert LIMITS.flops_per_s("int8") == 2 * 32 * 4 * 1e9 * 2
    assert LIMITS.flops_per_s("float16") == 2 * 16 * 8 * 1e9 * 2
    assert LIMITS.flops_per_s("bfloat16") == 2 * 16 * 2.5 * 1e9 * 2
    assert LIMITS.flops_per_s("bool") == 2 * 32 * 2 * 1e9 * 2
    assert LIMITS.bytes_per_s == 10e9


@pytest.mark.parametrize(
    ("flops", "num_bytes", "signature", "best_s", "words"),
    [
        (64e9, 1e9, MATMUL, 1.0, "100% of peak arithmetic: nothing left"),
        (64e9, 1e9, MATMUL, 1.1, "91% of peak arithmetic: little left"),
        (64e9, 1e9, MATMUL, 1.5, "67% of peak arithmetic: more trials may help"),
        (64e9, 1e9, MATMUL, 2.44, "41% of peak arithmetic: try more trials"),
        (64e9, 1e9, MATMUL, 0.9, "faster than the calibrated peak"),
        (64e9, 1e9, BYTES, 1.0, "12% of peak arithmetic: try more trials"),
        (64e9, 1e9, HALVES, 0.5, "25% of peak arithmetic: try more trials"),
        (1e9, 9.8e9, MATMUL, 1.0, "98% of memory bandwidth: nothing left"),
        (0.0, 10.2e9, "", 1.0, "100% of memory bandwidth: nothing left"),
        (0.0, 10e9, "", 0.5, "faster than memory: its operands stay in a cache"),
    ],
)
def test_a_verdict_names_the_limit_and_what_to_do(
    flops: float, num_bytes: float, signature: str, best_s: float, words: str
) -> None:
    assert verdict(LIMITS, flops, num_bytes, signature, best_s) == words


@pytest.mark.parametrize(
    ("flops", "num_bytes", "best_s"), [(0.0, 0.0, 1.0), (1.0, 1.0, None), (1.0, 1.0, 0.0)]
)
def test_there_is_no_verdict_without_a_profile(flops: float, num_bytes: float, best_s: float | None) -> None:
    assert verdict(LIMITS, flops, num_bytes, MATMUL, best_s) == ""
    assert verdict(Limits.of(None, 32, 2), 64e9, 1e9, MATMUL, 1.0) == ""


@pytest.mark.parametrize(
    ("whole", "short"),
    [
        ("41% of peak arithmetic: try more trials", "41%: try more trials"),
        ("100% of memory bandwidth: nothing left", "100%: nothing left"),
        ("faster than memory: its operands stay in a cache", "faster than memory"),
        ("faster than the calibrated peak", "faster than the peak"),
        ("fallback: no rule for 5% of: it", "fallback: no rule for 5% of: it"),
        ("", ""),
    ],
)
def test_a_short_verdict_keeps_the_share_and_the_advice(whole: str, short: str) -> None:
    assert short_verdict(whole) == short
