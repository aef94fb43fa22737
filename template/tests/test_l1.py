"""Level 1, function: irregular shapes and options."""

import pytest

from harness.spec import Case
from harness.testing import Runner, accuracy_cases


@pytest.mark.l1
@pytest.mark.parametrize("case", accuracy_cases("l1"))
def test_l1(runner: Runner, case: Case) -> None:
    runner.check(case)
