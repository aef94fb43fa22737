"""Runs every starter's cases of levels 0 and 1 on the virtual NPU and writes the table in README.md.

    python tests/verified.py

Takes half an hour from cold on two cores. Needs the compiler (`python -m harness toolchain install` in any package).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "template"))

import harness.catalog
import harness.project
import lowering
import repository
from harness.compiler.client import Compiler, find_compiler
from harness.ladder import Ladder
from harness.spec import Case
from tables import table

TARGET = repository.ROOT / "README.md"
BEGIN, END = "<!-- written by tests/verified.py -->\n", "<!-- end of what starters compute -->"
HEAD = ("scenario", "operator", "inputs", "exchange", "cases", "largest absolute error", "output of")
LEVELS = ("l0", "l1")


def is_shown(case: Case) -> bool:
    return case.level in LEVELS and not case.nightly


def measure(package: Path, compiler: Compiler) -> dict[str, Any]:
    """Climbs one package; returns the status and the cases of ``simulated``."""
    lowering.ahead(compiler, package, is_shown)
    with lowering.foreign_modules():
        rungs = {rung.name: rung for rung in Ladder(harness.project.load(package), select=is_shown).climb()}
    failed = [f"{rung.name}: {rung.summary}" for rung in rungs.values() if rung.status == "failed"]
    simulated = rungs["simulated"]
    return {"status": simulated.status, "failed": failed, "cases": simulated.data.get("cases", {})}


def main() -> int:
    rows, bad = [], []
    os.environ |= {
        f"GIT_{role}_{what}": "starters@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    with tempfile.TemporaryDirectory() as scratch, find_compiler() as compiler:
        harness.catalog.PATH = repository.write_catalog(Path(scratch) / "catalog.json")
        template = repository.copy_working_tree(Path(scratch) / "template")
        repository.commit_all(template, "template", repository.VERSION)
        for starter in repository.starters():
            record = repository.catalog()["operators"][starter.scenario][starter.operator]
            for exchange in record.get("cv_exchange", [""]):
                answers = starter.answers | ({"cv_exchange": exchange} if exchange else {})
                package = repository.render(template, Path(scratch) / f"{starter}-{exchange}", answers)
                result = measure(package, compiler)
                name = f"{starter} {exchange}".strip()
                print(f"{name}: {result['status']}, {len(result['cases'])} cases {result['failed'] or ''}", flush=True)
                if result["status"] != "passed":
                    bad.append(name)
                    continue
                worst = max(result["cases"], key=lambda case: result["cases"][case]["max_error"])
                error = result["cases"][worst]["max_error"]
                names = (f"`{starter.scenario}`", f"`{starter.operator}`", starter.dtype, exchange or "–")
                rows.append([*names, str(len(result["cases"])), f"{error:.2g}" if error else "0", worst])
    if bad:
        print(f"not written, these did not pass: {', '.join(bad)}", file=sys.stderr)
        return 1
    head, _, rest = TARGET.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    TARGET.write_text(f"{head}{BEGIN}{table(HEAD, rows)}\n{END}{tail}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
