"""pytest options, levels and upstream's markers for the generated tests.

Level 0 and level 1 decide. Wrong numbers of a boundary case warn (``xfailed``), unless ``--strict-boundary`` is
given; one that does not compile or run fails.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from harness.testing import Runner, passed

LEVELS = ("l0", "l1", "l2", "boundary")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kernel")
    group.addoption(
        "--level",
        type=_levels,
        default=frozenset(LEVELS),
        metavar="LEVEL[,LEVEL]",
        help=f"which levels to run, of {', '.join(LEVELS)} (default: all)",
    )
    group.addoption(
        "--device",
        choices=("auto", "npu", "virtual"),
        default="auto",
        help="auto: the NPU where there is one, else the virtual NPU",
    )
    group.addoption("--gate", choices=("current", "legacy"), default="current", help="tolerances")
    group.addoption("--nightly", action="store_true", help="run the slow cases too")
    group.addoption("--strict-boundary", action="store_true", help="a failing boundary case fails the run")


def _levels(text: str) -> frozenset[str]:
    names = set(text.split(","))
    unknown = names - {*LEVELS, "all"}
    if unknown:
        raise argparse.ArgumentTypeError(f"no such level: {', '.join(sorted(unknown))}; {', '.join(LEVELS)} or all")
    return frozenset(LEVELS) if "all" in names else frozenset(names)


def pytest_configure(config: pytest.Config) -> None:
    for level in LEVELS:
        config.addinivalue_line("markers", f"{level}: tests of level {level}")
    config.addinivalue_line("markers", "nightly: right but slow; runs with --nightly")
    if not hasattr(config, "workerinput"):  # under xdist, the process that reports
        config.pluginmanager.register(Verdicts(), "kernel-verdicts")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--level")
    keep = [item for item in items if not _level(item) or _level(item) in wanted]
    if not config.getoption("--nightly"):
        keep = [item for item in keep if item.get_closest_marker("nightly") is None]
    if any(_level(item) == "l0" for item in items) and "l0" in wanted and not any(map(_is_gate, keep)):
        raise pytest.UsageError("tests/spec.py has no case of level 0 that would run: nothing would be judged")
    if len(keep) < len(items):
        kept = set(keep)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = keep


def _is_gate(item: pytest.Item) -> bool:
    return _level(item) == "l0" and not item.name.endswith("[NOTSET]")


def _level(item: pytest.Item) -> str:
    return next((level for level in LEVELS if item.get_closest_marker(level)), "")


@pytest.fixture(scope="session")
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """Runs cases on the device that was asked for."""
    made = Runner(request.config.getoption("--device"), request.config.getoption("--gate"))
    yield made
    made.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    level = _level(item)
    if call.when == "call" and level:
        report.user_properties.append(("level", level))  # travels to the process that reports, under xdist too
        wrong = call.excinfo is not None and isinstance(call.excinfo.value, AssertionError)
        if level == "boundary" and wrong and not item.config.getoption("--strict-boundary"):
            report.outcome = "skipped"
            report.wasxfail = "boundary cases warn, they do not block"
    return report


class Verdicts:
    """Upstream's markers, and its closing line after pytest's own summary, where upstream's scripts look for it."""

    def __init__(self) -> None:
        self._reports: list[tuple[str, bool]] = []
        self._lines: list[str] = []
        self._exit = 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        level = str(dict(report.user_properties).get("level", ""))
        did_not_run = report.skipped and not hasattr(report, "wasxfail")
        if report.when != "call" or not level or did_not_run:
            return
        self._reports.append((level, report.passed))
        kind = "PRECISION" if level in ("l0", "l1") else "BOUNDARY"
        word = "PASS" if report.passed else "FAIL" if kind == "PRECISION" else "WARN"
        self._lines.append(f"[{kind}_{word}] {level} {report.nodeid.rpartition('::')[2]}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._lines:
            terminalreporter.section("levels")
            for line in self._lines:
                terminalreporter.write_line(line)
            if any(line.startswith("[BOUNDARY_WARN]") for line in self._lines):
                terminalreporter.write_line("Wrong numbers at the boundary warn; --strict-boundary makes them fail.")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._exit = int(exitstatus)

    def pytest_unconfigure(self) -> None:
        if self._exit == 0 and passed(self._reports):
            print("Test Passed!")
