"""Boundary, infinities, NaN, zeros and the limits of the element type."""

import pytest

from harness.spec import Case
from harness.testing import Runner, accuracy_cases


@pytest.mark.boundary
@pytest.mark.parametrize("case", accuracy_cases("boundary"))
def test_boundary(runner: Runner, case: Case) -> None:
    runner.check(case)
