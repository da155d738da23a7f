"""Read index expressions of TIR as sums of multiples and quotients of loop variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from compiler.tir_nodes import find_all
from search.dag import Index, Term


class IndexReader:
    """Reads index expressions over variables that are defined in terms of the loops."""

    def __init__(self, loops: Sequence[Any]) -> None:
        self._analyzer = Analyzer()
        self._values: list[tuple[Any, Index]] = []
        for axis, loop in enumerate(loops):
            self.define(loop.loop_var, Index((Term(axis, 1),)), ir.Range(0, loop.extent))

    def define(self, variable: Any, value: Index, domain: ir.Range | None = None) -> None:
        self._values.append((variable, value))
        if domain is not None:
            self._analyzer.bind(variable, domain)

    def read(self, expression: Any) -> Index:
        """Return the index. An index that isn't a sum of multiples and quotients keeps only its axes."""
        index = self._read(expression)
        if index.affine and all(term.divisor == 1 for term in index.terms):
            return index
        return self._read(self._analyzer.simplify(expression))

    def _read(self, expression: Any) -> Index:
        match expression:
            case tirx.IntImm():
                return Index((), int(expression))
            case ir.Var():
                return self._value(expression)
            case tirx.Add():
                return _plus(self._read(expression.a), self._read(expression.b))
            case tirx.Sub():
                return _plus(self._read(expression.a), _times(self._read(expression.b), -1))
            case tirx.Mul(b=tirx.IntImm()):
                return _times(self._read(expression.a), int(expression.b))
            case tirx.Mul(a=tirx.IntImm()):
                return _times(self._read(expression.b), int(expression.a))
            case tirx.FloorDiv(b=tirx.IntImm()):
                return _floor_divide(self._read(expression.a), int(expression.b))
            case tirx.Cast():
                return self._read(expression.value)
        return _not_affine(map(self._value, find_all(expression, ir.Var)))

    def _value(self, variable: Any) -> Index:
        for known, value in self._values:
            if known.same_as(variable):
                return value
        return Index((), affine=False)


def _plus(a: Index, b: Index) -> Index:
    if not (a.affine and b.affine):
        return _not_affine((a, b))
    return Index(_sum(*a.terms, *b.terms), a.offset + b.offset)


def _times(a: Index, factor: int) -> Index:
    terms = _sum(*(term._replace(coefficient=term.coefficient * factor) for term in a.terms))
    return Index(terms, a.offset * factor, a.affine) if a.affine else a


def _floor_divide(a: Index, divisor: int) -> Index:
    """Divide every term: (8 i + 4 j) // 4 -> 2 i + j, (2 i) // 8 -> i // 4. A term whose coefficient is
    neither a multiple nor a divisor of the divisor can't be represented."""
    quotients = []
    for axis, coefficient, term_divisor in a.terms:
        size, sign = abs(coefficient), 1 if coefficient > 0 else -1
        if not a.affine or divisor < 1 or (size % divisor and divisor % size):
            return _not_affine([a])
        if size % divisor == 0:
            quotients.append(Term(axis, sign * size // divisor, term_divisor))
        else:
            quotients.append(Term(axis, sign, term_divisor * (divisor // size)))
    return Index(_sum(*quotients), a.offset // divisor)


def _sum(*terms: Term) -> tuple[Term, ...]:
    coefficients: dict[tuple[int, int], int] = {}
    for axis, coefficient, divisor in terms:
        coefficients[axis, divisor] = coefficients.get((axis, divisor), 0) + coefficient
    return tuple(Term(axis, c, divisor) for (axis, divisor), c in sorted(coefficients.items()) if c)


def _not_affine(parts: Iterable[Index]) -> Index:
    """Return a non-affine index that depends on the axes of its parts."""
    axes = frozenset(axis for part in parts for axis in part.axes)
    return Index(tuple(Term(axis, 1) for axis in sorted(axes)), affine=False)
