"""A matrix product, and a schedule of it that a service could have found."""

from __future__ import annotations

import json

import tvm
from tvm import te

TARGET = json.dumps({"kind": "llvm", "num-cores": 1})


# split the first loop of the only block by 4
TRACE = json.dumps(
    [
        [
            ["GetSBlock", [], ["C", "main"], ["b0"]],
            ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
            ["Split", ["l1", "None", 4], [1, 0], ["l4", "l5"]],
        ],
        [],
    ]
)


def matmul() -> tvm.tirx.PrimFunc:
    a, b = te.placeholder((32, 16), name="A"), te.placeholder((16, 8), name="B")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((32, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.create_prim_func([a, b, c])
