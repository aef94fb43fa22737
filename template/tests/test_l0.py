"""Level 0, gate: regular shapes."""

import pytest

from harness.spec import Case
from harness.testing import Runner, accuracy_cases


@pytest.mark.l0
@pytest.mark.parametrize("case", accuracy_cases("l0"))
def test_l0(runner: Runner, case: Case) -> None:
    runner.check(case)
