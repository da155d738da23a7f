"""Index expressions of TIR in the search's form: sums of multiples and quotients of loop variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

from search.dag import Index, Term


class IndexReader:
    """Reads expressions over variables, each of which was given a meaning in terms of the loops."""

    def __init__(self, loops: Sequence[Any]) -> None:
        self._analyzer = Analyzer()
        self._meanings: list[tuple[Any, Index]] = []
        for axis, loop in enumerate(loops):
            self.define(loop.loop_var, Index((Term(axis, 1),)), ir.Range(0, loop.extent))

    def define(self, variable: Any, meaning: Index, domain: ir.Range | None = None) -> None:
        self._meanings.append((variable, meaning))
        if domain is not None:
            self._analyzer.bind(variable, domain)

    def read(self, expression: Any) -> Index:
        plain = self._read(expression)
        if plain.affine and all(term.divisor == 1 for term in plain.terms):
            return plain
        return self._read(self._analyzer.simplify(expression))

    def _read(self, expression: Any) -> Index:
        match expression:
            case tirx.IntImm():
                return Index((), int(expression))
            case ir.Var():
                return self._meaning(expression)
            case tirx.Add():
                return _plus(self._read(expression.a), self._read(expression.b))
            case tirx.Sub():
                return _plus(self._read(expression.a), _times(self._read(expression.b), -1))
            case tirx.Mul(b=tirx.IntImm()):
                return _times(self._read(expression.a), int(expression.b))
            case tirx.Mul(a=tirx.IntImm()):
                return _times(self._read(expression.b), int(expression.a))
            case tirx.FloorDiv(b=tirx.IntImm()):
                return _over(self._read(expression.a), int(expression.b))
            case tirx.Cast():
                return self._read(expression.value)
        return _anywhere(map(self._meaning, find_all(expression, ir.Var)))

    def _meaning(self, variable: Any) -> Index:
        for known, meaning in self._meanings:
            if known.same_as(variable):
                return meaning
        return Index((), affine=False)


def find_all(expression: Any, *kinds: type) -> list[Any]:
    """Every part of one of these kinds, those inside before those outside."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, [(kind, _collector(found)) for kind in kinds])
    return found


def _collector(found: list[Any]) -> Callable[[Any], None]:
    # list.append has no signature that the walker can inspect.
    def collect(value: Any) -> None:
        found.append(value)

    return collect


def _plus(a: Index, b: Index) -> Index:
    if not (a.affine and b.affine):
        return _anywhere((a, b))
    return Index(_sum(*a.terms, *b.terms), a.offset + b.offset)


def _times(a: Index, factor: int) -> Index:
    terms = _sum(*(term._replace(coefficient=term.coefficient * factor) for term in a.terms))
    return Index(terms, a.offset * factor, a.affine) if a.affine else a


def _over(a: Index, divisor: int) -> Index:
    """The sum of the terms' quotients; a term that the divisor is no multiple or divisor of has none."""
    quotients = [_quotient(term, divisor) for term in a.terms]
    known = [quotient for quotient in quotients if quotient is not None]
    if not a.affine or divisor < 1 or len(known) < len(quotients):
        return _anywhere([a])
    return Index(_sum(*known), a.offset // divisor)


def _quotient(term: Term, divisor: int) -> Term | None:
    size, sign = abs(term.coefficient), 1 if term.coefficient > 0 else -1
    if size % divisor == 0:
        return Term(term.axis, sign * size // divisor, term.divisor)
    if divisor % size == 0:
        return Term(term.axis, sign, term.divisor * (divisor // size))
    return None


def _sum(*terms: Term) -> tuple[Term, ...]:
    coefficients: dict[tuple[int, int], int] = {}
    for axis, coefficient, divisor in terms:
        coefficients[axis, divisor] = coefficients.get((axis, divisor), 0) + coefficient
    return tuple(Term(axis, c, divisor) for (axis, divisor), c in sorted(coefficients.items()) if c)


def _anywhere(parts: Iterable[Index]) -> Index:
    """What depends on some axes in a way that has no form."""
    axes = frozenset(axis for part in parts for axis in part.axes)
    return Index(tuple(Term(axis, 1) for axis in sorted(axes)), affine=False)
