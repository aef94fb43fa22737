"""Findings as text, JSON, GitHub workflow commands and SARIF."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.rules.registry import RULES, Finding

FORMATS = ("text", "json", "github", "sarif")


def render(findings: Sequence[Finding], form: str, root: Path) -> str:
    """The findings in one of ``FORMATS``; paths are relative to ``root``.

    Raises:
        ValueError: There is no such format.
    """
    rows = [finding.to_json(root) for finding in findings]
    match form:
        case "text":
            return "\n".join(map(_text, rows)) or "no findings"
        case "json":
            return json.dumps({"schema": 1, "findings": rows}, indent=1)
        case "github":
            return "\n".join(map(_github, rows))
        case "sarif":
            return json.dumps(_sarif(rows), indent=1)
    raise ValueError(f"format {form!r} does not exist; use one of {', '.join(FORMATS)}")


def _text(row: dict[str, Any]) -> str:
    fix = f"\n    fix: {row['fix']}{' (check --fix does it)' if row['fixable'] else ''}" if row["fix"] else ""
    return f"{row['path']}:{row['line']}:{row['column']}: {row['severity']} {row['rule']} {row['message']}{fix}"


def _github(row: dict[str, Any]) -> str:
    def escape(text: str, more: str = "") -> str:
        for character in "%\r\n" + more:
            text = text.replace(character, f"%{ord(character):02X}")
        return text

    message = row["message"] + (f". Fix: {row['fix']}" if row["fix"] else "")
    place = f"file={escape(row['path'], ',:')},line={row['line']},col={row['column']}"
    return f"::{row['severity']} {place},title={row['rule']} {row['name']}::{escape(message)}"


def _sarif(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    used = sorted({row["rule"] for row in rows})
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "harness",
                        "rules": [
                            {"id": id, "name": RULES[id].name, "shortDescription": {"text": RULES[id].reason}}
                            for id in used
                        ],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [
                    {
                        "ruleId": row["rule"],
                        "ruleIndex": used.index(row["rule"]),
                        "level": row["severity"],
                        "message": {"text": row["message"] + (f". Fix: {row['fix']}" if row["fix"] else "")},
                        "locations": [
                            {
                                "physicalLocation": {
                                    "artifactLocation": {"uri": row["path"], "uriBaseId": "%SRCROOT%"},
                                    "region": {"startLine": row["line"], "startColumn": row["column"]},
                                }
                            }
                        ],
                    }
                    for row in rows
                ],
            }
        ],
    }
