"""Heads that share keys get an axis of their own, and scores are never reshaped."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax

from compiler.importing.grouped_attention import separate_groups

HEADS, SHARED, QUERIES, KEYS, SIZE = 6, 2, 5, 7, 4
GROUP = HEADS // SHARED


def _module(mask: tuple[int, ...], returns_weights: bool = False) -> tvm.IRModule:
    """An attention of groups as `compiler.importing.shared_heads` writes it."""
    shapes = {
        "query": (1, HEADS, QUERIES, SIZE),
        "key": (1, SHARED, SIZE, KEYS),
        "value": (1, SHARED, KEYS, SIZE),
        "mask": mask,
    }
    query, key, value, added = (
        relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()
    )
    b = relax.BlockBuilder()
    with b.function("main", [query, key, value, added]):
        with b.dataflow():
            rows = b.emit(relax.op.reshape(query, (1, SHARED, GROUP * QUERIES, SIZE)))
            product = b.emit(relax.op.matmul(rows, key))
            scores = b.emit(relax.op.reshape(product, (1, HEADS, QUERIES, KEYS)))
            scaled = b.emit(relax.op.multiply(scores, relax.const(0.5, "float32")))
            weights = b.emit(relax.op.nn.softmax(b.emit(relax.op.add(added, scaled)), -1))
            joined = b.emit(relax.op.reshape(weights, (1, SHARED, GROUP * QUERIES, KEYS)))
            values = b.emit(relax.op.matmul(joined, value))
            heads = b.emit(relax.op.reshape(values, (1, HEADS, QUERIES, SIZE)))
            result = b.emit(relax.op.permute_dims(heads, [0, 2, 1, 3]))
            outputs = relax.Tuple([result, weights]) if returns_weights else result
            output = b.emit_output(outputs)
        b.emit_func_output(output)
    return b.get()


def _shapes_of_softmaxes(module: tvm.IRModule) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []

    def visit(expression: relax.Expr) -> None:
        if str(getattr(getattr(expression, "op", None), "name", "")) == "relax.nn.softmax":
            found.append(tuple(map(int, expression.ty.shape)))

    relax.analysis.post_order_visit(module["main"], visit)
    return found


def _run(module: tvm.IRModule) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal([int(n) for n in parameter.ty.shape], dtype=np.float32)
        for parameter in module["main"].params
    ]
    machine = relax.VirtualMachine(relax.build(module, "llvm"), tvm.cpu())
    return machine["main"](*(tvm.runtime.tensor(one) for one in inputs)).numpy()


@pytest.mark.parametrize(
    "mask",
    [(1, 1, QUERIES, KEYS), (1, HEADS, 1, KEYS), (HEADS, QUERIES, 1), (QUERIES, KEYS)],
    ids=["one for all heads", "of each head", "without a batch", "a matrix"],
)
def test_groups_get_an_axis(mask: tuple[int, ...]) -> None:
    module = _module(mask)
    separated = separate_groups(module, min_queries=QUERIES)
    assert _shapes_of_softmaxes(separated) == [(1, SHARED, GROUP, QUERIES, KEYS)]
    np.testing.assert_allclose(_run(separated), _run(module), rtol=1e-5, atol=1e-6)


def test_few_queries_and_weights_with_other_readers_stay() -> None:
    module = _module((1, 1, QUERIES, KEYS))
    for kept in (
        separate_groups(module, min_queries=QUERIES + 1),
        separate_groups(_module((1, 1, QUERIES, KEYS), returns_weights=True), min_queries=QUERIES),
    ):
        assert _shapes_of_softmaxes(kept) == [(1, HEADS, QUERIES, KEYS)]
