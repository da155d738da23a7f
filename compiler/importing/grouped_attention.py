"""Give the attention of grouped heads an axis for the groups, so that it is one subgraph on GPUs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.analysis import post_order_visit

from compiler.constants.fold import rewrite_functions, static_shape

Shape = tuple[int, ...]
# The heads of queries are split, so the permutation that joins them gets an axis more.
_JOINED, _JOINED_GROUPS = (0, 2, 1, 3), (0, 3, 1, 2, 4)
_ELEMENTWISE = ("relax.add", "relax.multiply", "relax.divide")


def separate_groups(module: tvm.IRModule, min_queries: int) -> tvm.IRModule:
    """Compute the attention of groups of heads, of `min_queries` and more queries, without reshaping scores.

        lv = matmul(q, k)                               # q: Tensor((1, 2, 64, 8)), k: Tensor((1, 2, 8, 40))
        lv1 = softmax(add(reshape(lv, (1, 8, 16, 40)), mask))
        lv2 = matmul(reshape(lv1, (1, 2, 64, 40)), v)
        gv = permute_dims(reshape(lv2, (1, 8, 16, 8)), axes=[0, 2, 1, 3])
    ->
        lv = matmul(reshape(q, (1, 2, 4, 16, 8)), expand_dims(k, axis=[2]))
        lv1 = softmax(add(lv, expand_dims(mask, axis=[2])))
        lv2 = matmul(lv1, expand_dims(v, axis=[2]))
        gv = reshape(permute_dims(lv2, axes=[0, 3, 1, 2, 4]), (1, 16, 8, 8))

    `compiler.importing.shared_heads` writes the first form.
    """

    def rewrite(function: relax.Function) -> relax.Function:
        uses: Counter[Any] = Counter()

        def count(expression: relax.Expr) -> None:
            if isinstance(expression, Call | relax.Tuple):
                operands = expression.args if isinstance(expression, Call) else expression.fields
                uses.update(operand for operand in operands if isinstance(operand, relax.Var))

        post_order_visit(function, count)
        return _Separator(module, uses, min_queries).visit_expr(function)

    return rewrite_functions(module, rewrite)


@relax.expr_functor.mutator
class _Separator(relax.PyExprMutator):
    def __init__(self, module: tvm.IRModule, uses: Counter[Any], min_queries: int) -> None:
        super().__init__(module)
        self._uses, self._min_queries = uses, min_queries

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if _name(call) != "relax.permute_dims" or call.attrs.axes is None:
            return call
        shape = static_shape(call.args[0])
        if tuple(map(int, call.attrs.axes)) != _JOINED or shape is None or shape[2] < self._min_queries:
            return call
        values = (
            self._separated(call.args[0], shape[:3]) if self._ends(call.args[0], "relax.matmul") else None
        )
        if values is None:
            return call
        joined = self.builder_.emit(relax.op.permute_dims(values, _JOINED_GROUPS))
        return relax.op.reshape(joined, static_shape(call))

    def _separated(self, value: relax.Expr, heads: Shape) -> relax.Expr | None:
        """Return a value of all heads (batch, heads, queries, any) as (batch, shared heads, group, queries,
        any); None unless it ends an attention of groups.
        """
        call = self._only_used(value)
        name = _name(call)
        separated: relax.Expr | None = None
        if name == "relax.reshape":
            return self._separated(call.args[0], heads)
        if name == "relax.matmul":
            separated = self._product(call, heads)
        elif name in ("relax.astype", "relax.nn.softmax"):
            inner = self._separated(call.args[0], heads)
            shape = static_shape(call)
            if inner is not None and name == "relax.astype":
                separated = relax.op.astype(inner, call.attrs.dtype)
            elif inner is not None and shape is not None and int(call.attrs.axis) % len(shape) == 3:
                separated = relax.op.nn.softmax(inner, -1)
        elif name in _ELEMENTWISE:
            separated = self._elementwise(call, heads)
        return None if separated is None else self.builder_.emit(separated)

    def _product(self, call: Call, heads: Shape) -> relax.Expr | None:
        """Return a product of queries or weights with the keys or values that a group shares."""
        batch, count, queries = heads
        left, right = (static_shape(argument) for argument in call.args)
        if left is None or right is None or len(left) != 4 or left[:2] != right[:2] or left[0] != batch:
            return None
        shared = left[1]
        if shared == count or count % shared or left[2] != queries * count // shared:
            return None
        if self._ends(call.args[0], "relax.nn.softmax"):
            first = self._separated(call.args[0], heads)
        else:
            source: Any = self.lookup_binding(call.args[0]) if isinstance(call.args[0], relax.Var) else None
            queries_of = source.args[0] if _name(source) == "relax.reshape" else call.args[0]
            groups = (batch, shared, count // shared, queries, left[3])
            first = self.builder_.emit(relax.op.reshape(queries_of, groups))
        if first is None:
            return None
        second = self.builder_.emit(relax.op.expand_dims(call.args[1], 2))
        dtype = call.attrs.out_dtype
        return relax.op.matmul(first, second, str(dtype) if dtype else None)

    def _elementwise(self, call: Call, heads: Shape) -> relax.Expr | None:
        """Return a scale or a mask of scores."""
        inner = [self._separated(argument, heads) for argument in call.args]
        shared = next((static_shape(one) for one in inner if one is not None), None)
        if shared is None:
            return None
        operands = [
            self._broadcast(argument, shared) if one is None else one
            for argument, one in zip(call.args, inner, strict=True)
        ]
        return None if None in operands else Call(call.op, operands, call.attrs)

    def _broadcast(self, operand: relax.Expr, shared: Shape) -> relax.Expr | None:
        """Return an operand of scores of all heads with an axis for groups."""
        shape = static_shape(operand)
        if shape is None or len(shape) < 3:
            return None if shape is None else operand
        heads = (1, 1) if shape[-3] == 1 else shared[1:3]
        return self.builder_.emit(relax.op.reshape(operand, (*shape[:-3], *heads, *shape[-2:])))

    def _ends(self, value: relax.Expr, operator: str) -> bool:
        """Return whether an operator computes a value, converted or in another shape."""
        call = self._only_used(value)
        while _name(call) in ("relax.astype", "relax.reshape"):
            call = self._only_used(call.args[0])
        return _name(call) == operator

    def _only_used(self, value: relax.Expr) -> Any:
        """Return the definition of a value that one operator reads; None for others."""
        if not isinstance(value, relax.Var) or self._uses[value] != 1:
            return None
        return self.lookup_binding(value)


def _name(expr: Any) -> str:
    return str(getattr(getattr(expr, "op", None), "name", ""))
