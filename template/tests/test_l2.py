"""Level 2, errors: inputs that must be refused, with a message that says why."""

import pytest

from harness.spec import ErrorCase
from harness.testing import Runner, error_cases


@pytest.mark.l2
@pytest.mark.parametrize("error", error_cases())
def test_l2(runner: Runner, error: ErrorCase) -> None:
    runner.check_error(error)
