"""A target may name the machine of the code, and nothing that changes the compiler's behaviour."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.target import TargetRefused, rewrite_target

GPU = {
    "kind": "cuda",
    "arch": "sm_90",
    "max_threads_per_block": 1024,
    "thread_warp_size": 32,
    "host": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mattr": ["+avx2", "-avx512f"]},
}


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "llvm"},
        {"kind": "llvm", "mcpu": "cortex-a76", "mtriple": "aarch64-linux-gnu", "num-cores": 4},
        {"kind": "llvm", "keys": ["cpu"], "tag": ""},
        {"kind": "cuda", "arch": "sm_80", "tag": "nvidia/nvidia-a100"},
        GPU,
    ],
)
def test_targets_that_name_a_machine_are_rewritten(target: dict[str, Any]) -> None:
    assert rewrite_target(json.dumps(target, indent=2)) == json.dumps(
        target, sort_keys=True, separators=(",", ":")
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[" * 60_000, "not JSON"),
        (" " * 70_000, "more than"),
        ("null", "not a JSON object"),
        ("{}", "kind is llvm or cuda, not None"),
        ('{"kind":"c"}', "kind is llvm or cuda, not 'c'"),
        ('{"kind":["llvm"]}', "kind is llvm or cuda"),
        ('{"kind":"llvm","cl-opt":["-load=/tmp/a.so"]}', "'cl-opt', which no device needs"),
        ('{"kind":"llvm","cl\\u002dopt":["-load=/tmp/a.so"]}', "'cl-opt', which no device needs"),
        ('{"kind":"llvm","fast-math":true}', "'fast-math'"),
        ('{"kind":"llvm","jit":"orcjit"}', "'jit'"),
        ('{"kind":"llvm","host":{"kind":"llvm","host":{"kind":"llvm"}}}', "'host'"),
        ('{"kind":"cuda","host":{"kind":"llvm","cl-opt":[]}}', "'cl-opt'"),
        ('{"kind":"llvm","num-cores":NaN}', "num-cores makes no sense"),
        ('{"kind":"llvm","num-cores":true}', "num-cores makes no sense"),
        ('{"kind":"llvm","num-cores":0}', "num-cores makes no sense"),
        ('{"kind":"llvm","num-cores":1e400}', "num-cores makes no sense"),
        ('{"kind":"llvm","num-cores":99999999999999999999}', "num-cores makes no sense"),
        ('{"kind":"llvm","mcpu":"a b"}', "mcpu makes no sense"),
        ('{"kind":"llvm","mattr":["avx2"]}', "mattr makes no sense"),
        ('{"kind":"llvm","mattr":["+a,+b"]}', "mattr makes no sense"),
        ('{"kind":"cuda","arch":"sm_80 --compiler-options x"}', "arch makes no sense"),
    ],
)
def test_invalid_targets_are_rejected(text: str, why: str) -> None:
    with pytest.raises(TargetRefused, match=why):
        rewrite_target(text)
