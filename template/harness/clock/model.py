"""What the virtual clock takes for granted: the chip, and the few figures that PTO-ISA's cost model does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.catalog import Catalog, CatalogError

# PTO-ISA's cost model counts in cycles of this clock; its transfer rates (GiB/s per core) are converted with it.
MODEL_GHZ = 1.85
CATALOG_GHZ = 1.8  # the clock of the chips it was measured on, as the catalog gives it

# The unit that a transfer or computation takes, in the order of the cost model's PipeKey.
ROUTES = (
    "vector",
    "cube",
    "GM→UB",
    "GM→L1",
    "UB→GM",
    "L1→GM",
    "UB→UB",
    "L0C→GM",
    "L0C→L1",
    "L1→L0A",
    "L1→L0B",
    "L1→BT",
    "L1→FB",
    "L1 fill",
)
GLOBAL_ROUTES = ("GM→UB", "GM→L1", "UB→GM", "L1→GM", "L0C→GM")
PIPES = ("S", "V", "MTE1", "MTE2", "MTE3", "M", "ALL", "FIX")
ROLES = ("cube", "vector 0", "vector 1")


@dataclass(frozen=True)
class Chip:
    """A chip, as far as time depends on it.

    Attributes:
        name: As ``910B1``.
        platform: ``A2``, ``A3`` or ``A5``.
        cores: AI cores (a cube core and two vector cores each).
        ghz: Clock of the AI cores.
        hbm_tbps: Bandwidth of global memory, TB/s; 0 where it is not known.
        macs: Multiply-accumulate operations per cube core and cycle, fp16.
    """

    name: str
    platform: str
    cores: int
    ghz: float
    hbm_tbps: float
    macs: int = 4096

    def peak_tflops(self, dtype: str, *, cube: bool) -> float:
        """Arithmetic peak in TFLOP/s for operands of a type, on the cube cores or on the vector cores."""
        size = {"int8": 1, "uint8": 1, "float32": 4, "int32": 4}.get(dtype, 2)
        # A pair of vector cores handles 2 x 256 bytes per cycle.
        rate = 2 * self.macs * {1: 2.0, 2: 1.0, 4: 0.25}[size] if cube else 2 * 256 / size
        return rate * self.cores * self.ghz / 1000

    @property
    def clock_ghz(self) -> float:
        """Clock for the model's cycles: the model's own for the chips it was measured on, in proportion for others."""
        return MODEL_GHZ * self.ghz / CATALOG_GHZ


def find_chip(catalog: Catalog, platform: str, name: str = "") -> Chip:
    """A chip of the catalog; without a name the platform's first.

    Raises:
        CatalogError: There is none of that name, or its clock is unknown.
    """
    row = catalog.hardware.get(platform)
    if row is None:
        raise CatalogError(f"unknown platform {platform!r}; known: {', '.join(catalog.hardware)}")
    chips: Mapping[str, Mapping[str, float]] = row["chips"]
    name = name or next(iter(chips))
    if name not in chips:
        raise CatalogError(f"unknown chip {name!r} of {platform}; known: {', '.join(chips)}")
    chip = chips[name]
    if "clock_ghz" not in chip:
        raise CatalogError(f"{platform} {name}: no clock is known for it (catalog/hardware.yml)")
    return Chip(
        name=name,
        platform=platform,
        cores=int(chip["cube_cores"]),
        ghz=float(chip["clock_ghz"]),
        hbm_tbps=float(chip.get("hbm_tbps", 0)),
        macs=int(row.get("macs_per_cycle", 4096)),
    )


# Route: start (cycles), rate (bytes per cycle), latency (cycles). UB→UB is PTO-ISA's own reference (tests/costmodel/st,
# tmov: 5 cycles and one 32-byte block per cycle); the latencies are round figures, see docs/clock-validation.md.
TRANSFERS: Mapping[str, tuple[float, float, float]] = {
    "UB→UB": (5, 32, 0),
    "GM→UB": (0, 0, 400),
    "GM→L1": (0, 0, 400),
    "UB→GM": (0, 0, 200),
    "L1→GM": (0, 0, 200),
    "L0C→GM": (0, 0, 200),
}


@dataclass(frozen=True)
class Extra:
    """What PTO-ISA's cost model lacks. ``Extra.none()`` leaves only upstream's own figures.

    Attributes:
        issue: Cycles of the scalar unit per instruction, flag or barrier.
        cross: Cycles from setting a cross-core flag until the other core can pass it.
        launch_us: Starting a kernel, microseconds.
        transfers: By route: a transfer takes at least ``start + bytes / rate`` cycles (the cost model only counts bytes
            at the sustained rate), and its data is there ``latency`` cycles after that.
    """

    issue: float = 1
    cross: float = 600
    launch_us: float = 10.0
    transfers: Mapping[str, tuple[float, float, float]] = field(default_factory=lambda: dict(TRANSFERS))

    @classmethod
    def none(cls) -> Extra:
        return cls(cross=0, launch_us=0.0, transfers={})

    def orders(self) -> list[str]:
        """As the driver reads them."""
        lines = [f"issue {self.issue}", f"cross {self.cross}"]
        return lines + [f"transfer {ROUTES.index(r)} {' '.join(map(str, row))}" for r, row in self.transfers.items()]
