"""Sweep over block sizes: lowers (or compiles) every combination that fits, times it, proposes new defaults."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import catalog
from harness.compiler.cache import digest
from harness.project import Project

STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the default
MISFIT = "does not fit"
GAIN = 0.03  # a proposal has to be faster by at least this


@dataclass(frozen=True)
class Trial:
    """One combination of block sizes: its time, or why it has none."""

    blocks: Mapping[str, int]
    microseconds: float | None
    reason: str = ""


def candidates(project: Project, given: Sequence[str] = ()) -> list[dict[str, int]]:
    """Combinations of block sizes: given as ``name=a,b,c``, else around the defaults within the catalog's limits.

    Raises:
        ValueError: A given block is unknown or no number.
    """
    record = catalog.load().operator(project.scenario, project.operator).get("blocks", {})
    values: dict[str, list[int]] = {}
    for name, default in project.block.items():
        limits = record.get(name, {})
        low, high = _limit(limits, "minimum", project, 1), _limit(limits, "maximum", project, 1 << 30)
        multiple = _limit(limits, "multiple", project, 1)
        near = {int(default * step) // multiple * multiple for step in STEPS}
        values[name] = sorted({n for n in near if low <= n <= high} | {int(default)})
    for text in given:
        name, _, numbers = text.partition("=")
        if name not in values:
            raise ValueError(f"--tune {text}: no block {name!r}; there are: {', '.join(values) or 'none'}")
        try:
            values[name] = [int(n) for n in numbers.split(",")]
        except ValueError:
            raise ValueError(f"--tune {text}: expected {name}=NUMBER,NUMBER") from None
    combinations = [dict(zip(values, sizes, strict=True)) for sizes in itertools.product(*values.values())]
    usual = dict(project.block)
    return [usual, *(blocks for blocks in combinations if blocks != usual)]


def misfits(project: Project, combinations: Sequence[Mapping[str, int]], shape: Mapping[str, int]) -> list[Trial]:
    """The combinations that cannot fit by the arithmetic of the starter's record, each as a trial that says why.

    The defaults are never among them; nor is anything where the record does not tell, as in an adopted kernel.
    """
    found = []
    for blocks in combinations:
        reason = "" if dict(blocks) == dict(project.block) else _overflow(project, {**project.shape, **shape, **blocks})
        if reason:
            found.append(Trial(dict(blocks), None, f"{MISFIT}: {reason}"))
    return found


def _overflow(project: Project, sizes: Mapping[str, int]) -> str:
    """The first memory that is too small; empty where all buffers fit or a size is not known."""
    facts = catalog.load()
    record = facts.operator(project.scenario, project.operator)
    types = {"dtype": project.dtype, "accum": record.get("accumulate", {}).get(project.dtype, "")}
    for memory, entries in record.get("memory", {}).items():
        need = 0
        for entry in entries:
            dims = [sizes.get(dim) if isinstance(dim, str) else dim for dim in entry["dims"]]
            element = facts.dtypes.get(types.get(entry["dtype"], entry["dtype"]))
            if element is None or None in dims:
                return ""
            if entry.get("cv_exchange", project.cv_exchange) == project.cv_exchange:
                size = element["bytes"] * math.prod(n for n in dims if n is not None) / entry.get("divide", 1)
                need += math.ceil(size) * int(entry.get("copies", 1))
        capacity = facts.capacity(project.platform, memory)
        if need > capacity:
            return f"{memory} {need:,} of {capacity:,} bytes"
    return ""


def _limit(limits: Mapping[str, Any], name: str, project: Project, missing: int) -> int:
    value = limits.get(name, missing)
    while isinstance(value, Mapping):
        value = value.get(project.dtype, value.get(project.platform, value.get("default", missing)))
    return int(value)


class Log:
    """Trials that are done, a line of JSON each: an interrupted sweep goes on where it was.

    Args:
        path: The file; it appears with the first trial.
        identity: Whatever makes a trial comparable: kernel text, arguments, chip, kind.
    """

    def __init__(self, path: Path, *identity: object) -> None:
        self.path, self.identity = path, digest(*identity)[:16]

    def read(self) -> list[Trial]:
        """The trials of this identity; lines that are damaged or of others are passed over."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            try:
                entry = json.loads(line)
                if entry["identity"] == self.identity:
                    found.append(Trial(entry["blocks"], entry["microseconds"], entry["reason"]))
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def add(self, trial: Trial) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"identity": self.identity, **vars(trial)}) + "\n")


def sweep(
    todo: Sequence[Mapping[str, int]], attempt: Callable[[Mapping[str, int], int], Trial], log: Log, *, workers: int = 1
) -> Iterator[Trial]:
    """Yields a trial for every combination, those of the log first.

    Args:
        attempt: Times one combination on worker number n (an NPU, or 0).
        workers: How many are tried at a time.
    """
    done = {json.dumps(trial.blocks, sort_keys=True): trial for trial in log.read()}
    rest = []
    for blocks in todo:
        known = done.get(json.dumps(blocks, sort_keys=True))
        if known is None:
            rest.append(blocks)
        else:
            yield known
    free = list(range(workers))

    def one(blocks: Mapping[str, int]) -> Trial:
        number = free.pop()
        try:
            return attempt(blocks, number)
        finally:
            free.append(number)

    with ThreadPoolExecutor(workers) as pool:
        for trial in pool.map(one, rest):
            log.add(trial)
            yield trial


def proposal(trials: Sequence[Trial], default: Mapping[str, int]) -> Trial | None:
    """The fastest combination, where it beats the default by more than noise."""
    timed = [trial for trial in trials if trial.microseconds is not None]
    usual = next((t.microseconds for t in timed if dict(t.blocks) == dict(default)), None)
    best = min(timed, key=lambda trial: trial.microseconds or 0.0, default=None)
    if best is None or best.microseconds is None:
        return None
    return best if usual is None or best.microseconds < usual * (1 - GAIN) else None
