"""Carry the names of a model's nodes through TVM's passes to the subgraphs that compute them.

An importer gives each node's name a number, its place. It names the node's bindings after the place, such as
`place3_`. TVM's passes keep the names of the bindings that they rewrite. A new binding gets the place of its
first reader. Fusion drops the names of bindings, but keeps the spans of calls.

    place3_ = conv2d(x, w)
    place4_ = relu(place3_)
->
    lv = call_tir(fused_conv2d_relu, (x, w))        # PLACES of main begins with the name at place 3
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, SourceName, Span

from core.plain_text import without_controls

MAX_CHARS = 200
# An attribute of `main`: the names by place or, after fusion, the names of its kernel calls in order.
PLACES = "tunefarm.places"
_UNKNOWN = -1
_BINDING = re.compile(r"place(\d+)_\d*")
# TVM's OpPatternKind kOutEWiseFusable, such as matrix products and convolutions. No greater kind is fused.
_SUM_OF_PRODUCTS = 4


class Places:
    """The names of a model's nodes by place."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._numbers)

    def binding(self, name: str | bytes) -> str:
        """Return the bindings' name for a node's name; "" without one, so that TVM chooses a name."""
        plain = readable(name)
        return f"place{self._numbers.setdefault(plain, len(self._numbers))}_" if plain else ""


def readable(name: str | bytes) -> str:
    """Return a name as one line of at most MAX_CHARS. Of a longer name, only the end is kept.

    Protobuf returns bytes for a text that isn't UTF-8.
    """
    encoded = name if isinstance(name, bytes) else name.encode(errors="replace")
    line = " ".join(without_controls(encoded.decode(errors="replace")).split())
    return line if len(line) <= MAX_CHARS else f"…{line[1 - MAX_CHARS :]}"


def name_output(module: tvm.IRModule) -> tvm.IRModule:
    """Give the output of `main` the name of its binding, because TVM would keep only the output's name.

        gv = place3_
        return gv
    ->
        place3_ = place3_
        return place3_
    """
    main = module["main"]
    *blocks, last = main.body.blocks
    alias = last.bindings[-1] if len(last.bindings) else None
    if not isinstance(alias, relax.VarBinding) or not main.body.body.same_as(alias.var):
        return module
    source = alias.value
    if not isinstance(source, relax.Var) or not _BINDING.fullmatch(source.name):
        return module
    output = relax.Var(source.name, alias.var.ty)
    last = type(last)([*last.bindings[:-1], relax.VarBinding(output, source)])
    module = module.clone()
    module["main"] = _with_body(main, relax.SeqExpr([*blocks, last], output))
    return module


def with_places(module: tvm.IRModule, names: Sequence[str]) -> tvm.IRModule:
    """Store the names of places as an attribute of `main`."""
    module = module.clone()
    module["main"] = module["main"].with_attr(PLACES, list(names))
    return module


def mark_calls(module: tvm.IRModule) -> tvm.IRModule:
    """Write the place of each binding into the span of its call."""
    module = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            module[variable] = _with_marked_calls(function)
    return module


def _with_marked_calls(function: relax.Function) -> relax.Function:
    blocks = list(function.body.blocks)
    places: dict[relax.Var, int] = {}
    for block in reversed(blocks):
        for binding in reversed(block.bindings):
            found = _BINDING.fullmatch(binding.var.name)
            place = int(found[1]) if found else places.get(binding.var, _UNKNOWN)
            places[binding.var] = place
            if place != _UNKNOWN and isinstance(binding, relax.VarBinding):
                places |= dict.fromkeys(relax.analysis.free_vars(binding.value), place)

    def marked(binding: Any) -> Any:
        place, call = places[binding.var], getattr(binding, "value", None)
        if place == _UNKNOWN or not isinstance(call, Call):
            return binding
        span = Span(SourceName("model"), place, place, 0, 0)
        return relax.VarBinding(
            binding.var, Call(call.op, call.args, call.attrs, call.ty_args, span, ret_ty=call.ty)
        )

    marked_blocks = [type(block)([marked(binding) for binding in block.bindings]) for block in blocks]
    return _with_body(function, relax.SeqExpr(marked_blocks, function.body.body))


def note_places(module: tvm.IRModule) -> tvm.IRModule:
    """Store the name of each kernel call in PLACES of `main`. Run this after FuseOps and before FuseTIR.

    A fused group gets the place of its matrix product or convolution, else of its first operator.
    """
    names, found = list(module["main"].attrs.get(PLACES, ())), []
    for block in module["main"].body.blocks:
        for call in (getattr(binding, "value", None) for binding in block.bindings):
            if not isinstance(call, Call):
                continue
            if isinstance(call.op, tvm.ir.GlobalVar):
                found.append(_place_of_group(module, module[call.op]))
            elif _is_kernel(call):
                found.append(_place(call))
    return with_places(module, [names[place] if 0 <= place < len(names) else "" for place in found])


def _with_body(function: relax.Function, body: relax.SeqExpr) -> relax.Function:
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _place_of_group(module: tvm.IRModule, group: relax.Function) -> int:
    calls = [
        binding.value
        for block in group.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding)
        and isinstance(binding.value, Call)
        and _is_kernel(binding.value)
    ]
    placed = [call for call in calls if _place(call) != _UNKNOWN]

    def sums_products(call: Call) -> bool:
        return int(module[call.args[0]].attrs.get("op_pattern", 0)) == _SUM_OF_PRODUCTS

    return _place(max(placed, key=sums_products)) if placed else _UNKNOWN


def _is_kernel(call: Call) -> bool:
    return str(getattr(call.op, "name", "")).startswith("relax.call_tir")


def _place(call: Call) -> int:
    return _UNKNOWN if call.span is None else int(call.span.line)
