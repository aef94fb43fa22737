"""Conventions that hold: rules over a kernel's source, its lowered form and its package.

A rule has a stable id (``TLA101``), a reason, a position and a fix. ``# tla: ignore[TLA101] why`` on the line silences
it; the reason is required. ``python -m harness explain TLA101`` says why a rule exists.
"""

from harness.rules.checker import check_lowered, check_project, check_source
from harness.rules.registry import RULES, Context, Edit, Finding, Rule

__all__ = ["RULES", "Context", "Edit", "Finding", "Rule", "check_lowered", "check_project", "check_source"]
