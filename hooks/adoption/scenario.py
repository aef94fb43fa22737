"""Which row of the scenario table a kernel belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.catalog import Catalog
from harness.rules.cores import core, crosses_on_chip
from harness.rules.model import SWITCHES, Factory, Kernel

BY_HAND = {"T.set_cross_flag", "T.wait_cross_flag"}
REDUCTIONS = ("T.reduce_max", "T.tile.reduce_max")


@dataclass(frozen=True)
class Choice:
    """A scenario and a compiler era, the reason, and what does not fit."""

    scenario: str
    era: str
    why: str
    notes: list[str] = field(default_factory=list)


def choose_scenario(factory: Factory, catalog: Catalog, era: str | None) -> Choice:
    """The scenario that a factory's form and switches speak for.

    Args:
        factory: The factory.
        catalog: Its scenario table decides what the switches of a row are.
        era: The compiler era, or None for the one whose row is nearest to the factory's switches.
    """
    kernel = factory.kernels[0]
    known = factory.config.switches
    on = None if known is None else {name: bool(known.get(name, False)) for name in SWITCHES.values()}
    scenario, why = _by_form(kernel, on)
    rows = catalog.scenarios[scenario]["switches"]
    eras = [era] if era else list(rows)
    differences = {name: _differences(catalog.switches(scenario, name), on) for name in eras}
    chosen = min(eras, key=lambda name: len(differences[name]))
    notes: list[str] = []
    if on is None:
        notes.append(f"can't tell which switches {factory.name} uses, because {factory.config.reason}")
    elif differences[chosen]:
        different = ", ".join(f"{name.upper()} {'on' if on[name] else 'off'}" for name in differences[chosen])
        notes.append(f"the row of {scenario} (compiler era {chosen}) has other switches; this kernel has {different}")
    elif chosen != next(iter(rows)):
        notes.append(f"the switches are those of compiler era {chosen}")
    return Choice(scenario, chosen, why, notes)


def _differences(row: Mapping[str, bool], on: Mapping[str, bool] | None) -> list[str]:
    return [name for name in row if on is not None and row[name] != on[name]]


def _by_form(kernel: Kernel, on: dict[str, bool] | None) -> tuple[str, str]:
    cores = {core(kernel, operation) for operation in kernel.operations}
    cube, vector = "C" in cores, "V" in cores or crosses_on_chip(kernel)
    scoped = any(operation.in_scope for operation in kernel.operations)
    flagged = any(operation.name in BY_HAND for operation in kernel.operations)
    if on is not None and not any(on.values()):
        return "expert", "no switch is on"
    if scoped or flagged:
        what = "T.Scope" if scoped else "cross-core flags"
        if on is not None and not (on["auto_sync"] or on["memory_planning"]):
            return "expert", f"{what} by hand, synchronisation and buffers too"
        return "mixed", f"{what} by hand, with automatic switches"
    if not cube:
        return "vector", "no work for the cube cores"
    if not vector:
        return "gemm", "no work for the vector cores"
    products = sum(1 for _ in kernel.named("T.gemm_v0", "T.gemm", "T.mma"))
    if products > 1 and any(operation.name in REDUCTIONS for operation in kernel.operations):
        return "flash_attention", "several products with a maximum between them"
    return "cv_fusion", "products and vector work, everything automatic"
