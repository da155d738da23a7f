"""Bound the difference between the outputs of two correct programs of a workload.

A schedule changes the order of sums, and which multiplications and additions are fused. So right programs
differ by roundings, each of at most half an epsilon of its type. The roundings of a sum of n terms are a
random walk: its length grows with sqrt(n) (Higham and Mary, "A New Approach to Probabilistic Rounding Error
Analysis", 2019). Later operations may amplify an error. To measure by how much, the reference also runs with
nudged inputs and nudged recomputed values.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import ir, tirx
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import ScheduleError

from compiler.measuring.random_inputs import limits
from compiler.precision.tf32 import multiplies_rounded
from compiler.reading.blocks import is_expensive
from compiler.tir_nodes import find_all, op_name, reduced
from search.sketches.half_products import BLOCK_TERMS

ROUNDED = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div)
# Operations that may amplify the relative error: a divisor may be small, and a limit or a choice may shrink a
# large value but not its error.
AMPLIFYING = (tirx.Div, tirx.Min, tirx.Select)
# A sum of n terms may be off by this many epsilons times sqrt(n). A third of an epsilon is usual.
SUM_FACTOR = 4.0
# Tensor cores add up the products of DEPTH terms and the sum so far in one step. Products are exact. All are
# aligned to the largest exponent among them. Each loses the bits that a float32 of that exponent lacks, and
# the result is truncated too (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor
# cores", 2021). So a step loses less than DEPTH + 2 epsilons of the largest, always towards zero, and these
# errors accumulate. An H100 keeps two more bits of each term, and adds 8 terms of 16 bits in a step.
DEPTH = 4
TRUNCATIONS = (DEPTH + 2) / DEPTH  # for each term of a sum
# The factors of an attention's second product are a softmax's weights. An online softmax rounds them to TF32
# before it divides them by their sum. So two right programs differ in each by up to this epsilon, with any
# sign.
TF32_EPSILON = 2.0**-10
# Dot products of bfloat16 round to nearest, so the bound of other sums holds for them. They replace subnormal
# operands, products and sums by zero ("Intel 64 and IA-32 Architectures Software Developer's Manual",
# VDPBF16PS). Each term loses at most two numbers below the smallest normal one. This holds because inputs
# that are compared are either all subnormal or ordinary. Rounding to bfloat16 takes them as zero, too.
FLUSHED = 2 * float(np.finfo(np.float32).smallest_normal)
# exp, tanh and the like are approximations. Ours differ from a library's by up to ten epsilons of float32, a
# GPU's by a hundred.
FUNCTION_EPSILONS = 200.0
# The fraction of values that may round to the other neighbour when rounded to integers.
MAX_OTHER_NEIGHBOUR_SHARE = 1e-3
# Inputs of the reference are nudged by this multiple of the allowed error, because nudges may cancel each
# other out.
NUDGE_FACTOR = 2.0
STEPS = ("floor", "ceil", "round", "trunc", "nearbyint")


@dataclass(frozen=True)
class Rounding:
    """The effect of a workload's rounding errors on its outputs.

    `relative` is the error relative to the outputs. Values below `floor` times their type's smallest number
    have no precision left. `flushed` is the sum of the small numbers that dot products may take as zero.
    `amplified`: outputs may have larger relative errors than their operands. `has_steps`: a few values may
    differ by a step.
    """

    relative: float = 0.0
    floor: float = 0.0
    flushed: float = 0.0
    amplified: bool = False
    has_steps: bool = False

    @classmethod
    def of(cls, function: tirx.PrimFunc, *, in_blocks: bool = False) -> Rounding:
        """Sum the rounding errors of all blocks. If the device adds products of float16 `in_blocks`, these
        are rounded to halves (`search.sketches.half_products`).

            conv[...] += data[...] * weight[...]      # 4608 times, float32
            out[...] = max(conv[...] + bias[...], 0)
        ->
            relative = (2 + 4 * sqrt(4608)) * 2**-23 + 1 * 2**-23
        """
        relative = floor = flushed = 0.0
        inexact = _inexact_buffers(function)
        for block in find_all(function.body, SBlock):
            if find_all(block.body, SBlock):
                continue
            terms = reduced(block)
            if terms > 1 and _rounds_any(block, inexact):
                relative += SUM_FACTOR * TF32_EPSILON
            is_of_halves = terms > 1 and _may_be_truncated(block)
            truncations = TRUNCATIONS * terms if is_of_halves else 0.0
            flushed += FLUSHED * terms if is_of_halves else 0.0
            if terms > 1 and in_blocks and _multiplies(block, "float16"):
                relative += SUM_FACTOR * math.sqrt(min(terms, BLOCK_TERMS)) * epsilon("float16")
                flushed += terms * float(limits("float16").smallest_subnormal)
            for store in find_all(block.body, tirx.BufferStore):
                dtype = str(store.buffer.ty.dtype)
                operations = _operations(store)
                if not is_float(dtype) or not operations:
                    continue
                count = operations + (SUM_FACTOR * math.sqrt(terms) if terms > 1 else 0.0) + truncations
                relative += count * epsilon(dtype)
                floor += count
                flushed += FLUSHED if dtype == "bfloat16" else 0.0
        calls = [call for call in find_all(function.body, ir.Call) if is_float(call.ty.dtype)]
        functions = {str(call.ty.dtype) for call in calls if is_expensive(call)}
        for dtype in functions:
            # Functions of narrower types are computed in float32.
            relative += FUNCTION_EPSILONS * min(epsilon(dtype), epsilon("float32"))
            # Subnormal results may be 0 (compiler.codegen.vector_math).
            floor = 1.0 / epsilon(dtype)
        has_steps = any(op_name(call) in STEPS for call in calls) or any(
            is_float(cast.value.ty.dtype) and not is_float(cast.ty.dtype)
            for cast in find_all(function.body, tirx.Cast)
        )
        amplifies = any(is_float(node.ty.dtype) for node in find_all(function.body, *AMPLIFYING))
        return cls(relative, floor, flushed, bool(functions) or amplifies, has_steps)

    def bounds(self, values: NDArray[Any], nudged: NDArray[Any] | None) -> NDArray[Any]:
        """Return the allowed difference of each output. `nudged` are the outputs for nudged inputs."""
        with np.errstate(all="ignore"):
            size = np.abs(widened(values))
            error = np.asarray(self.relative * (size + _root_mean_square(size)))
            error += self.floor * float(limits(values.dtype).smallest_subnormal) + self.flushed
            is_finite = np.isfinite(size)
            if nudged is not None:
                change = np.asarray(np.abs(widened(nudged) - widened(values)))
                error += change + np.max(change, initial=0.0, where=np.isfinite(change))
            error[~is_finite] = 0.0
            if nudged is not None:
                # A value that is finite in only one of the two may be either.
                error[is_finite != np.isfinite(widened(nudged))] = np.inf
        return error


def nudge_recomputed(module: tvm.IRModule) -> tvm.IRModule:
    """Recompute intermediate values at each use in the workload `main`. Each copy nudges its operands by the
    size of their rounding errors, alternately up and down.

    A program may recompute values, and may fuse a multiplication into only one of the uses. Two uses then see
    two roundings of one value, which no nudge of the inputs shows.

        exp[i] = T.exp(scores[i] * 0.35 - largest[0])
        sum[0] += exp[i]
        norm[i] = exp[i] / sum[0]
    ->
        sum[0] += T.exp(scores[i] * (1 + a) * 0.35 - largest[0] * (1 - a))
        norm[i] = T.exp(scores[i] * (1 - b) * 0.35 - largest[0] * (1 + b)) / (sum[0] * (1 - b))

    Results of reductions are computed once. Returns the module unchanged if no value is used twice, or if TVM
    can't schedule it.
    """
    loads = Counter(load.source for load in find_all(module["main"].body, ir.TensorLoad))
    try:
        schedule = Schedule(module, debug_mask="none")
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    except Exception:  # TVM's C++ code may raise any exception class
        return module
    is_changed = False
    for block in blocks:
        inner = schedule.get(block)
        if reduced(inner) > 1 or not any(
            loads[store.buffer] > 1 and _operations(store) for store in find_all(inner.body, tirx.BufferStore)
        ):
            continue
        with contextlib.suppress(ScheduleError):  # outputs of the workload
            schedule.compute_inline(block)
            is_changed = True
    if not is_changed:
        return module
    first_signs = itertools.cycle((1.0, -1.0))

    def nudge_operands(store: Any) -> Any:
        # Booleans and integers have no rounding errors.
        if not find_all(store.value, ir.TensorLoad) or not is_float(store.buffer.ty.dtype):
            return store
        first = next(first_signs)
        signs = itertools.cycle((first, -first))
        share = NUDGE_FACTOR * _operations(store) * epsilon(str(store.buffer.ty.dtype))

        def nudge(load: Any) -> Any:
            if load.source.same_as(store.buffer) or not is_float(load.ty.dtype):
                return load
            return load * tirx.const(1.0 + next(signs) * share, load.ty.dtype)

        value = tvm_ffi.structural_map(store.value, (ir.TensorLoad, nudge))
        return tirx.BufferStore(store.buffer, value, store.indices)

    main = schedule.mod["main"]
    body = tvm_ffi.structural_map(main.body, (tirx.BufferStore, nudge_operands))
    return tvm.IRModule({"main": main.with_body(body)})


def _inexact_buffers(function: tirx.PrimFunc) -> set[Any]:
    """Return the buffers of floats that are computed from sums, so that right programs may differ in them."""
    found: set[Any] = set()
    for block in find_all(function.body, SBlock):  # in the order of computation
        if find_all(block.body, SBlock):
            continue
        sums = reduced(block) > 1
        for store in find_all(block.body, tirx.BufferStore):
            loaded = {load.source for load in find_all(store.value, ir.TensorLoad)} - {store.buffer}
            if is_float(store.buffer.ty.dtype) and (sums or loaded & found):
                found.add(store.buffer)
    return found


def _rounds_any(block: SBlock, buffers: set[Any]) -> bool:
    """Return whether a block multiplies values of these buffers, rounded to TF32."""
    return any(
        load.source in buffers and not load.source.same_as(store.buffer)
        for store in find_all(block.body, tirx.BufferStore)
        if multiplies_rounded(store.value)
        for load in find_all(store.value, ir.TensorLoad)
    )


def _may_be_truncated(block: SBlock) -> bool:
    """Return whether tensor cores or dot products of halves may compute a block's sum: its factors have at
    most 16 bits or are rounded to TF32, and its products are float32.
    """
    values = [store.value for store in find_all(block.body, tirx.BufferStore)]
    return any(map(multiplies_rounded, values)) or _multiplies(block, "float16", "bfloat16")


def _multiplies(block: SBlock, *types: str) -> bool:
    """Return whether a block multiplies values of these types in float32."""
    return any(
        isinstance(factor, tirx.Cast) and str(factor.value.ty.dtype) in types
        for product in find_all(block.body, tirx.Mul)
        if _is_float32(product)
        for factor in (product.a, product.b)
    )


def _is_float32(value: Any) -> bool:
    return str(value.ty.dtype) == "float32"


def _operations(store: Any) -> int:
    """Return how often a stored value is rounded."""
    rounded = [node for node in find_all(store.value, *ROUNDED) if is_float(node.ty.dtype)]
    casts = [cast for cast in find_all(store.value, tirx.Cast) if is_float(cast.value.ty.dtype)]
    return len(rounded) + len(casts)


def is_float(dtype: Any) -> bool:
    return str(dtype).startswith(("float", "bfloat"))


def epsilon(dtype: str) -> float:
    return float(limits(dtype).eps)


def widened(values: NDArray[Any]) -> NDArray[Any]:
    """Convert floats to a type whose rounding errors are far below the tolerances."""
    return values.astype(np.float64 if values.dtype == np.float64 else np.float32, copy=False)


def _root_mean_square(values: NDArray[Any]) -> float:
    finite = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
