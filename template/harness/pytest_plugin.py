"""pytest options, levels and upstream's markers for the generated tests.

Level 0 and level 1 decide; a boundary case that fails is a warning (``xfailed``) unless ``--strict-boundary`` is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.testing import Runner, passed

LEVELS = ("l0", "l1", "l2", "boundary")
_verdicts = pytest.StashKey[list[tuple[str, bool]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kernel")
    group.addoption("--level", choices=(*LEVELS, "all"), default="all", help="which level to run (default: all)")
    group.addoption(
        "--device",
        choices=("auto", "npu", "virtual"),
        default="auto",
        help="auto: the NPU where there is one, else the virtual NPU",
    )
    group.addoption("--gate", choices=("current", "legacy"), default="current", help="tolerances")
    group.addoption("--nightly", action="store_true", help="run the slow cases too")
    group.addoption("--strict-boundary", action="store_true", help="a failing boundary case fails the run")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_verdicts] = []
    for level in LEVELS:
        config.addinivalue_line("markers", f"{level}: tests of level {level}")
    config.addinivalue_line("markers", "nightly: right but slow; runs with --nightly")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--level")
    keep = [item for item in items if wanted == "all" or (_level(item) or wanted) == wanted]
    if not config.getoption("--nightly"):
        keep = [item for item in keep if item.get_closest_marker("nightly") is None]
    if len(keep) < len(items):
        kept = set(keep)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = keep


def _level(item: pytest.Item) -> str:
    return next((level for level in LEVELS if item.get_closest_marker(level)), "")


@pytest.fixture(scope="session")
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """Runs cases on the device that was asked for."""
    made = Runner(request.config.getoption("--device"), request.config.getoption("--gate"))
    yield made
    made.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    level = _level(item)
    if call.when == "call" and level:
        report.user_properties.append(("level", level))
        if level == "boundary" and report.failed and not item.config.getoption("--strict-boundary"):
            report.outcome, report.wasxfail = "skipped", "boundary cases warn, they do not block"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    level = dict(report.user_properties).get("level")
    if report.when != "call" or not level or _config is None:
        return
    ok = report.passed
    if report.skipped and not hasattr(report, "wasxfail"):
        return  # did not run: neither passed nor failed
    _config.stash[_verdicts].append((str(level), ok))
    kind = "PRECISION" if level in ("l0", "l1") else "BOUNDARY"
    word = "PASS" if ok else "FAIL" if kind == "PRECISION" else "WARN"
    _markers.append(f"[{kind}_{word}] {level} {report.nodeid.rpartition('::')[2]}")


_config: pytest.Config | None = None
_markers: list[str] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    global _config
    _config = session.config
    _markers.clear()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _markers:
        terminalreporter.section("levels")
        for line in _markers:
            terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    # After pytest's own summary, so that it is the last line: upstream's scripts look for it there.
    controller = _config is config and not hasattr(config, "workerinput")
    if controller and passed(config.stash[_verdicts]) and getattr(config, "_kernel_exit", 1) == 0:
        print("Test Passed!")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config._kernel_exit = exitstatus  # type: ignore[attr-defined]
