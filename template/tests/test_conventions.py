"""Kernel, pass_configs and scenario agree."""

import pytest

from harness import project
from harness.ladder import Ladder


@pytest.mark.parametrize("rung", ["parsed", "conventions"])
def test_rung(rung: str) -> None:
    result = next(result for result in Ladder(project.load()).climb() if result.name == rung)
    assert result.status == "passed", "\n".join([result.summary, *result.details])
