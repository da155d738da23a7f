"""The figures of a run, and the tables of the site's page about ONNX operators."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from benchmarks.coverage.tried import TYPES, Outcome, Tried, TypedVerdict, Verdict
from benchmarks.report import markdown
from benchmarks.results.figures import HEADERS, Figure, Results, at_least, at_most, cells, figure

ORDINARY = "all but text, sequence, optional, random and training operators"
EVERYTHING = "with nothing left out"
WITH_TYPES = "operators with each element type"


def figures_of(tried: Sequence[Tried]) -> list[Figure]:
    ordinary = [each for each in tried if not each.left_out]
    found = []
    for name, cases in ((ORDINARY, ordinary), (EVERYTHING, tried)):
        if not cases:
            continue
        ours, tvms = (_counts(cases, answer) for answer in (_ours, _tvms))
        share = 100 * ours[Outcome.RIGHT] / len(cases)
        theirs = f"TVM's importer: {100 * tvms[Outcome.RIGHT] / len(cases):.1f}"
        aim = at_least(97) if name == ORDINARY else None
        found.append(figure("right", share, "%", subject=name, aim=aim, note=theirs))
        for outcome in Outcome:
            aim = at_most(0) if outcome in (Outcome.WRONG, Outcome.CRASHED) else None
            unit, note = f"of {len(cases)}", f"TVM's importer: {tvms[outcome]}"
            found.append(
                figure(
                    f"cases {outcome}",
                    ours[outcome],
                    unit,
                    subject=name,
                    count=len(cases),
                    aim=aim,
                    note=note,
                )
            )
    refused = [each for each in tried if each.ours.outcome is Outcome.REFUSED]
    unnamed = sum(not re.search(r"\b(node|input|output) ", each.ours.why) for each in refused)
    found.append(figure("refusals that name no node, input or output", unnamed, "", aim=at_most(0)))
    return found


def figures_of_types(answers: Sequence[TypedVerdict]) -> list[Figure]:
    """Return the figures of operators with element types. Cases without expected values are counted
    separately."""
    known = [each.answer for each in answers if each.answer is not None]
    counts = Counter(answer.outcome for answer in known)
    found = [figure("cases without expected values", len(answers) - len(known), "", subject=WITH_TYPES)]
    for outcome in Outcome:
        aim = at_most(0) if outcome in (Outcome.WRONG, Outcome.CRASHED) else None
        unit, count = f"of {len(known)}", len(known)
        found.append(
            figure(f"cases {outcome}", counts[outcome], unit, subject=WITH_TYPES, count=count, aim=aim)
        )
    return found


def types_table(answers: Sequence[TypedVerdict]) -> str:
    """Return a table with a row for each operator and a column for each element type. A cell is empty if ONNX
    doesn't have the combination."""
    found: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for each in answers:
        outcome = "unknown" if each.answer is None else str(each.answer.outcome)
        found[each.operator][each.dtype].add(outcome)
    used = {each.dtype for each in answers}
    columns = [dtype for dtype in TYPES if dtype in used]
    rows = [
        [operator, *(_worst(types[dtype]) if dtype in types else "" for dtype in columns)]
        for operator, types in sorted(found.items())
    ]
    return markdown.table(["operator", *columns], rows)


def _worst(outcomes: set[str]) -> str:
    """Return the worst outcome: a mistake, otherwise a refusal, otherwise a right result."""
    order = (Outcome.CRASHED, Outcome.WRONG, Outcome.REFUSED, Outcome.RIGHT, "unknown")
    return next(str(outcome) for outcome in order if outcome in outcomes)


def sections(results: Results, tried: Sequence[Tried]) -> dict[str, str]:
    """Return the Markdown table of each section of the page."""
    return {
        "figures": markdown.table(HEADERS, map(cells, results.figures)),
        "operators": _operators([each for each in tried if not each.left_out]),
        "left out": _operators([each for each in tried if each.left_out]),
        "not right": _not_right([each for each in tried if not each.left_out]),
    }


def _operators(tried: Iterable[Tried]) -> str:
    by_operator: defaultdict[str, list[Tried]] = defaultdict(list)
    for each in tried:
        by_operator[each.operator].append(each)
    headers = ["operator", "cases", *Outcome, *(f"TVM: {outcome}" for outcome in Outcome)]
    rows = []
    for operator, cases in sorted(by_operator.items()):
        counts = [_counts(cases, answer) for answer in (_ours, _tvms)]
        numbers = [str(count[outcome] or "") for count in counts for outcome in Outcome]
        rows.append([operator, str(len(cases)), *numbers])
    return markdown.table(headers, rows)


def _not_right(tried: Iterable[Tried]) -> str:
    """Return a row for each case that isn't right."""
    rows = [
        [each.case, each.ours.outcome, each.ours.why]
        for each in tried
        if each.ours.outcome is not Outcome.RIGHT
    ]
    return markdown.table(["case", "outcome", "message"], rows)


def _ours(tried: Tried) -> Verdict:
    return tried.ours


def _tvms(tried: Tried) -> Verdict:
    return tried.tvms


def _counts(tried: Iterable[Tried], answer: Callable[[Tried], Verdict]) -> Counter[Outcome]:
    return Counter(answer(each).outcome for each in tried)
