"""Writes the README's tables (from the catalog and the questions) and docs/rules.md: ``make docs``.

Tests fail where they are stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

import repository

README = repository.ROOT / "README.md"
RULES = repository.ROOT / "docs" / "rules.md"
SHORT = {
    "auto_sync": "AUTO_SYNC",
    "memory_planning": "MEMORY_PLANNING",
    "auto_cv_combine": "AUTO_CV_COMBINE",
    "auto_cv_sync": "AUTO_CV_SYNC",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def scenarios() -> str:
    rows = []
    for name, row in repository.catalog()["scenarios"].items():
        released, strict = row["switches"].values()
        cells = []
        for switch in SHORT:
            on, later = released[switch], strict[switch]
            cells.append(word(on) if on == later else f"{word(on)} (strict-scope: {word(later)})")
        rows.append([f"`{name}`", row["purpose"], *cells, "by hand" if "manual" in row["scope"].values() else "no"])
    return table(["scenario", "for", *SHORT.values(), "`T.Scope`"], rows)


def word(on: bool) -> str:
    return "on" if on else "–"


def operators() -> str:
    rows = [
        [f"`{scenario}`", f"`{name}`", record["title"], ", ".join(record["dtypes"]), ", ".join(record["platforms"])]
        for scenario, records in repository.catalog()["operators"].items()
        for name, record in records.items()
    ]
    return table(["scenario", "operator", "computes", "element types", "chips"], rows)


def hardware() -> str:
    chips = repository.catalog()["hardware"]
    head = ["memory", "used for", "alignment", *chips]
    first = next(iter(chips.values()))["memory"]
    rows = [
        [name, row["use"], f"{row['align']} B", *(f"{chip['memory'][name]['bytes']:,}" for chip in chips.values())]
        for name, row in first.items()
    ]
    return table(head, rows)


def questions() -> str:
    rows = []
    sizes: list[str] = []
    defaults = repository.default_answers()
    for name, row in repository.questions().items():
        if row.get("when") is False:
            continue
        if "size-check.jinja" in row.get("validator", ""):
            sizes.append(f"`{name}`")
            continue
        rows.append([f"`{name}`", " ".join(row["help"].split()), shown(defaults[name])])
        if name == "dtype":
            rows.append(["", "", ""])
    place = rows.index(["", "", ""])
    rows[place] = [
        ", ".join(sizes),
        "Problem and block sizes of the operator; refused where they do not fit.",
        "the record's",
    ]
    return table(["question", "what for", "default"], rows)


def shown(default: object) -> str:
    """An answer as a reader types it."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return f"`{default}`" if default != "" else "the first that the operator has"


GENERATED = {"scenarios": scenarios, "operators": operators, "hardware": hardware, "questions": questions}


def refreshed(text: str) -> str:
    """The text with every ``<!-- generated NAME -->`` region written anew."""

    def write(match: re.Match[str]) -> str:
        return f"{match[1]}\n{GENERATED[match[2]]()}\n{match[3]}"

    return re.sub(r"(<!-- generated (\w+) -->)\n.*?(<!-- end -->)", write, text, flags=re.DOTALL)


def main() -> int:
    """Rewrites the README and the rules' page."""
    sys.path.insert(0, str(repository.ROOT / "template"))
    from harness.rules.explain import document

    text = README.read_text(encoding="utf-8")
    README.write_text(refreshed(text), encoding="utf-8")
    RULES.write_text(document(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
