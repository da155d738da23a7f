"""Compile the loop nests of candidates one by one, and keep them: equal nests are compiled once.

A candidate is then a list of calls. `call_list` makes the function that calls them without Python.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import tvm
import tvm_ffi
from tvm.script.ir_builder import IRBuilder
from tvm.tirx import PrimFunc
from tvm.tirx.script import builder as T  # noqa: N812 - as in TVM

from compiler.codegen.compilation import compile_functions
from compiler.codegen.nests import Nests
from compiler.packaging.llvm_check import check_llvm

# A compiled nest takes about 0.7 MB of memory.
MAX_KEPT = 256
# Functions of this name take their arguments in the form in which TVM passes them.
_PACKED_MAIN = "__tvm_ffi_main"
_PACKED_CONVENTION = 1
# An argument consists of two words: its type, then its value. An entry of the table of calls has three
# arguments.
_WORDS, _VALUE, _ENTRY = 2, 1, 3


@dataclass(frozen=True)
class CompiledNests:
    """The compiled loop nests of a candidate, one function for each."""

    nests: Nests
    functions: tuple[Any, ...]

    def arguments(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the arguments with which the function of `call_list` calls the nests for a candidate's
        `tensors`: these, the operands of each nest, and the table of calls.
        """
        known = [*tensors, *self._intermediate]
        passed, table = list(tensors), []
        for nest, function in zip(self.nests.nests, self.functions, strict=True):
            table += [function, len(passed), len(nest.operands)]
            passed += [known[index] for index in nest.operands]
        return [*passed, *table, len(self.functions)]

    @cached_property
    def _intermediate(self) -> list[Any]:
        pairs = zip(self.nests.shapes, self.nests.dtypes, strict=True)
        return [tvm.runtime.empty(shape, dtype) for shape, dtype in pairs]


class NestCompiler:
    """Compiles functions for one target of LLVM's. Several threads may compile at the same time."""

    def __init__(self, target: tvm.target.Target) -> None:
        self._target = target
        self._lock = Lock()
        # Machine code by the function's TIR, the last used one at the end. A thread waits for code that
        # another thread is compiling.
        self._kept: OrderedDict[tvm_ffi.StructuralKey, Future[Any]] = OrderedDict()

    @cached_property
    def call_list(self) -> Any:
        """The library whose `main` calls a candidate's nests; see `CompiledNests.arguments`."""
        return tvm.compile(tvm.IRModule({_PACKED_MAIN: _call_list()}), target=self._target)

    def compile(self, functions: Sequence[PrimFunc]) -> list[Any]:
        """Return the machine code of each function. Those that aren't kept are compiled as one module.

        Raises SymbolError for a function that calls what no kernel needs. TVM's C++ code may raise any
        exception class.
        """
        keys = [tvm_ffi.StructuralKey(function) for function in functions]
        missing: dict[tvm_ffi.StructuralKey, PrimFunc] = {}
        with self._lock:
            for key, function in zip(keys, functions, strict=True):
                if key not in self._kept:
                    self._kept[key] = Future()
                    missing[key] = function
                self._kept.move_to_end(key)
            found = [self._kept[key] for key in keys]
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            ours = [self._kept[key] for key in missing]
        self._fill(ours, missing)
        return [self._of(future, function) for future, function in zip(found, functions, strict=True)]

    def _fill(
        self, futures: Sequence[Future[Any]], missing: Mapping[tvm_ffi.StructuralKey, PrimFunc]
    ) -> None:
        try:
            compiled = self._compiled(list(missing.values()))
        except BaseException as error:
            with self._lock:
                for key in missing:
                    self._kept.pop(key, None)
            for future in futures:
                future.set_exception(error)
            raise
        for future, function in zip(futures, compiled, strict=True):
            future.set_result(function)

    def _of(self, future: Future[Any], function: PrimFunc) -> Any:
        """Return a function's machine code. If another thread failed to compile it, another function of that
        module may be the reason, so compile it alone.
        """
        return self._compiled([function])[0] if future.exception() else future.result()

    def _compiled(self, functions: Sequence[PrimFunc]) -> list[Any]:
        if not functions:
            return []
        names = _different(str(function.attrs["global_symbol"]) for function in functions)
        named = {
            name: function.with_attr("global_symbol", name)
            for name, function in zip(names, functions, strict=True)
        }
        library = compile_functions(tvm.IRModule(named), self._target, check_arguments=False)
        check_llvm(library.mod.inspect_source("ll"))
        return [library[name] for name in names]  # the look-up emits machine code


def _different(names: Iterable[str]) -> list[str]:
    """Number names that occur again."""
    seen: Counter[str] = Counter()
    different = []
    for name in names:
        different.append(f"{name}{seen[name] or ''}")
        seen[name] += 1
    return different


def _call_list() -> PrimFunc:
    """Return a function in the form in which TVM calls functions. Its last argument is the number of calls.
    Before it lies an entry for each call: the function, the position of its first operand, and the number of
    operands.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name(_PACKED_MAIN)
        T.func_attr({"calling_conv": _PACKED_CONVENTION, "tirx.is_entry_func": True})
        T.func_ret(T.int32().ty)
        T.arg("self", T.handle())
        pointer = T.arg("arguments", T.handle("int64"))
        count = T.arg("count", T.int32())
        result = T.arg("result", T.handle())
        arguments = T.decl_buffer((count * _WORDS,), "int64", data=pointer)

        def value(index: Any) -> Any:
            return arguments[index * _WORDS + _VALUE]

        last = count - 1
        calls = T.cast(value(last), "int32")
        with T.serial(calls) as number:
            entry = last - (calls - number) * _ENTRY
            function = T.reinterpret(T.handle().ty, value(entry))
            operands = T.address_of(arguments[value(entry + 1) * _WORDS])
            size = T.cast(value(entry + 2), "int32")
            with T.Assert(
                T.call_extern("int32", "TVMFFIFunctionCall", function, operands, size, result) == 0,
                "a loop nest failed",
            ):
                T.evaluate(0)
        T.Return(T.int32(0))
    return builder.get()
