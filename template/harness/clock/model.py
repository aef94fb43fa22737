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
        if cube:
            rate = 2 * self.macs * {1: 2.0, 2: 1.0, 4: 0.25}[size]
        else:
            rate = 2 * 256 / size  # two vector cores, 256 bytes per cycle each
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


@dataclass(frozen=True)
class Latencies:
    """Times that the cost model lacks, in cycles unless said otherwise.

    Round figures, chosen on upstream's four sparse-attention kernels; docs/clock-validation.md shows what they are
    worth there and on kernels that had no part in choosing them. ``Latencies.none()`` leaves only upstream's figures.

    Attributes:
        issue: Scalar unit, per instruction, flag or barrier.
        load: From the end of a transfer out of global memory until its data can be used.
        store: From the end of a transfer into global memory until it can be seen.
        cross: From setting a cross-core flag until the other core can pass it.
        launch_us: Starting a kernel, microseconds.
    """

    issue: float = 1
    load: float = 400
    store: float = 200
    cross: float = 600
    launch_us: float = 10.0
    routes: Mapping[str, str] = field(
        default_factory=lambda: {"GM→UB": "load", "GM→L1": "load", "UB→GM": "store", "L1→GM": "store", "L0C→GM": "store"}
    )

    @classmethod
    def none(cls) -> Latencies:
        return cls(load=0, store=0, cross=0, launch_us=0.0)

    def orders(self) -> list[str]:
        """As the driver reads them."""
        lines = [f"issue {self.issue}", f"cross {self.cross}"]
        return lines + [f"latency {ROUTES.index(route)} {getattr(self, name)}" for route, name in self.routes.items()]
