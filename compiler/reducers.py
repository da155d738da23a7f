"""Teach TVM's schedule primitives maxima and minima that begin with infinity.

Imported maxima begin with -inf, as in ONNX. TVM knows only maxima that begin with the least finite number,
and rejects `rfactor` and cross-thread reductions of others.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi.libinfo import find_libtvm_ffi

_EXTREMES = ((tirx.Max, -math.inf, tirx.min_value), (tirx.Min, math.inf, tirx.max_value))


@cache
def register() -> None:
    """Register maxima and minima that begin with infinity, once in a process."""
    add = tvm.get_global_func("s_tir.schedule.RegisterReducer")
    for extreme, infinity, finite in _EXTREMES:
        add(1, _immortal(_combiner(extreme)), _immortal(_identity(infinity, finite)))


def _combiner(extreme: Any) -> Callable[..., list[Any]]:
    return lambda ours, theirs: [extreme(ours[0], theirs[0])]


def _identity(infinity: float, finite: Callable[[str], Any]) -> Callable[..., list[Any]]:
    def identity(values: Any) -> list[Any]:
        dtype = str(values[0].ty.dtype)
        return [tirx.FloatImm(dtype, infinity) if "float" in dtype else finite(dtype)]

    return identity


def _immortal(function: Callable[..., Any]) -> Any:
    """Return a function for TVM that is never freed.

    TVM's table outlives Python, and freeing a Python function at that time would crash the process.
    """
    converted = tvm_ffi.convert(function)
    increase = ctypes.CDLL(find_libtvm_ffi()).TVMFFIObjectIncRef
    increase.argtypes = [ctypes.c_void_p]
    increase(converted.__chandle__())
    return converted
