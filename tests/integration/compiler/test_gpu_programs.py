"""Random programs for GPUs, from the operators of the suite: lowered, compiled, run and compared.

Where there is no GPU, CUDA's compilers check the code, and it runs on an emulator of threads and barriers.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu_programs import Failure, compiled, draw, failures, why_not_checked
from tests.suite import SHAPES, cases

WHY_NOT = why_not_checked()

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def check(operator: str, count: int) -> list[Failure]:
    rng = np.random.default_rng(0)
    choices = cases(operator)
    drawn = [choices[number % len(choices)] for number in range(count)]
    results = [compiled(case, program) for case in drawn for program in draw(case, 1, rng)]
    refused = [one for one in results if isinstance(one, Failure)]
    return refused + failures([one for one in results if not isinstance(one, Failure)])


@pytest.mark.parametrize("operator", SHAPES)
def test_random_programs_compute_what_the_reference_does(operator: str) -> None:
    found = check(operator, 5)
    assert not found, "\n\n".join(map(str, found))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("operator", SHAPES)
def test_fewer_than_one_in_two_hundred_fails(operator: str) -> None:
    found = check(operator, 200)
    assert len(found) <= 1, "\n\n".join(map(str, found))
