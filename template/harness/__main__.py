"""``python -m harness``."""

import sys
from pathlib import Path


def run() -> int:
    """Runs the command line; says what is wrong where the harness itself cannot be loaded."""
    try:
        from harness.cli import main

        return main()
    except SyntaxError:
        places = conflicts(Path(__file__).parent)
        if not places:
            raise
        print("\n".join(places), file=sys.stderr)
        print("An update left these conflicts in the harness: settle them first, then check again.", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "harness").split(".")[0] == "harness":
            raise
        print(
            f"{sys.executable} has no {error.name}, which the harness needs. Use the package's environment:\n"
            "  source .venv/bin/activate    (or call .venv/bin/python)\n"
            "  no .venv? python3 -m venv .venv && .venv/bin/pip install -e '.[dev]'",
            file=sys.stderr,
        )
        return 2


def conflicts(folder: Path) -> list[str]:
    """Conflict markers in the harness's own code, as ``harness/budget.py:2: <<<<<<< before updating``."""
    return [
        f"{path.relative_to(folder.parent)}:{number}: {line}"
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if line.startswith("<<<<<<< ")
    ]


sys.exit(run())
