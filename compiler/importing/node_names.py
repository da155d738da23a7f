"""Carry the names of a model's nodes through TVM's passes to the subgraphs that compute them.

An importer gives each node's name a number. It names the node's bindings after the number, such as `node3_`.
TVM's passes keep the names of the bindings that they rewrite. A new binding gets the number of its first
reader. Fusion drops the names of bindings, but keeps the spans of calls.

    node3_ = conv2d(x, w)
    node4_ = relu(node3_)
->
    lv = call_tir(fused_conv2d_relu, (x, w))        # NODE_NAMES of main begins with the name of node 3
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
# An attribute of `main`: the names by number or, after fusion, the names of its kernel calls in order.
NODE_NAMES = "tunefarm.node_names"
_UNKNOWN = -1
_BINDING = re.compile(r"node(\d+)_\d*")
# TVM's OpPatternKind kOutEWiseFusable, such as matrix products and convolutions. No greater kind is fused.
_SUM_OF_PRODUCTS = 4


class NodeNames:
    """The names of a model's nodes, numbered in the order in which they are added."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._numbers)

    def binding(self, name: str | bytes) -> str:
        """Return the bindings' name for a node's name; "" without one, so that TVM chooses a name."""
        plain = readable(name)
        return f"node{self._numbers.setdefault(plain, len(self._numbers))}_" if plain else ""


def node_number(binding: str) -> int | None:
    """Return the node's number in a binding's name; None without one."""
    found = _BINDING.fullmatch(binding)
    return int(found[1]) if found else None


def readable(name: str | bytes) -> str:
    """Return a name as one line of at most MAX_CHARS. Of a longer name, only the end is kept.

    Protobuf returns bytes for a text that isn't UTF-8.
    """
    encoded = name if isinstance(name, bytes) else name.encode(errors="replace")
    line = " ".join(without_controls(encoded.decode(errors="replace")).split())
    return line if len(line) <= MAX_CHARS else f"…{line[1 - MAX_CHARS :]}"


def name_output(module: tvm.IRModule) -> tvm.IRModule:
    """Give the output of `main` the name of its binding, because TVM would keep only the output's name.

        gv = node3_
        return gv
    ->
        node3_ = node3_
        return node3_
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


def with_node_names(module: tvm.IRModule, names: Sequence[str]) -> tvm.IRModule:
    """Store the names by number as an attribute of `main`."""
    module = module.clone()
    module["main"] = module["main"].with_attr(NODE_NAMES, list(names))
    return module


def number_calls(module: tvm.IRModule) -> tvm.IRModule:
    """Write the number of each binding's node into the span of its call."""
    module = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            module[variable] = _with_numbered_calls(function)
    return module


def _with_numbered_calls(function: relax.Function) -> relax.Function:
    blocks = list(function.body.blocks)
    numbers: dict[relax.Var, int] = {}
    for block in reversed(blocks):
        for binding in reversed(block.bindings):
            found = node_number(binding.var.name)
            number = numbers.get(binding.var, _UNKNOWN) if found is None else found
            numbers[binding.var] = number
            if number != _UNKNOWN and isinstance(binding, relax.VarBinding):
                numbers |= dict.fromkeys(relax.analysis.free_vars(binding.value), number)

    def numbered(binding: Any) -> Any:
        number, call = numbers[binding.var], getattr(binding, "value", None)
        if number == _UNKNOWN or not isinstance(call, Call):
            return binding
        span = Span(SourceName("model"), number, number, 0, 0)
        return relax.VarBinding(
            binding.var, Call(call.op, call.args, call.attrs, call.ty_args, span, ret_ty=call.ty)
        )

    numbered_blocks = [type(block)([numbered(binding) for binding in block.bindings]) for block in blocks]
    return _with_body(function, relax.SeqExpr(numbered_blocks, function.body.body))


def name_calls(module: tvm.IRModule) -> tvm.IRModule:
    """Store the name of each kernel call in NODE_NAMES of `main`. Run this after FuseOps and before FuseTIR.

    A fused group gets the name of its matrix product or convolution, else the name of its first operator.
    """
    names, found = list(module["main"].attrs.get(NODE_NAMES, ())), []
    for block in module["main"].body.blocks:
        for call in (getattr(binding, "value", None) for binding in block.bindings):
            if not isinstance(call, Call):
                continue
            if isinstance(call.op, tvm.ir.GlobalVar):
                found.append(_number_of_group(module, module[call.op]))
            elif _is_kernel(call):
                found.append(_number(call))
    return with_node_names(module, [names[number] if 0 <= number < len(names) else "" for number in found])


def _with_body(function: relax.Function, body: relax.SeqExpr) -> relax.Function:
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _number_of_group(module: tvm.IRModule, group: relax.Function) -> int:
    calls = [
        binding.value
        for block in group.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding)
        and isinstance(binding.value, Call)
        and _is_kernel(binding.value)
    ]
    numbered = [call for call in calls if _number(call) != _UNKNOWN]

    def sums_products(call: Call) -> bool:
        return int(module[call.args[0]].attrs.get("op_pattern", 0)) == _SUM_OF_PRODUCTS

    return _number(max(numbered, key=sums_products)) if numbered else _UNKNOWN


def _is_kernel(call: Call) -> bool:
    return str(getattr(call.op, "name", "")).startswith("relax.call_tir")


def _number(call: Call) -> int:
    return _UNKNOWN if call.span is None else int(call.span.line)
