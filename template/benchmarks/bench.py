"""Measures the kernel over the cases of tests/spec.py: ``python benchmarks/bench.py --help``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.cli import main  # the harness lies beside this folder

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
