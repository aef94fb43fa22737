"""The one description of a kernel that tests, simulation and benchmark read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Level = Literal["l0", "l1", "boundary"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One accuracy case: a problem, what its inputs hold, and the level it belongs to.

    Attributes:
        name: Unique within the spec; the test id and the argument of ``check --case``.
        level: ``l0`` gate (regular shapes), ``l1`` function (irregular shapes), ``boundary`` (inf, nan, limits).
        shape: Problem sizes by name, in elements, for example ``{"M": 77, "N": 103}``.
        dtype: Element type of the inputs; empty means the package's own dtype.
        fill: What the inputs hold (``normal``, ``zeros``, ``inf``, …); the spec's ``inputs`` gives it its meaning.
        options: Keyword arguments of the host function, ``check_inputs`` and the reference.
        nightly: Run only with ``--nightly``: right but slow.
    """

    name: str
    level: Level
    shape: Mapping[str, int]
    dtype: str = ""
    fill: str = "normal"
    options: Mapping[str, Any] = field(default_factory=dict)
    nightly: bool = False


@dataclass(frozen=True, kw_only=True)
class ErrorCase:
    """One level-2 case: inputs that ``check_inputs`` must refuse.

    Attributes:
        name: Unique within the spec; the test id.
        inputs: Builds the arguments, as NumPy arrays or anything a confused caller might pass.
        match: Regular expression the message must contain.
        error: The exception's type.
        options: Keyword arguments of ``check_inputs``.
    """

    name: str
    inputs: Callable[[], tuple[Any, ...]]
    match: str
    error: type[Exception] = ValueError
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the problem costs at least.

    Attributes:
        flops: Arithmetic operations.
        bytes: Bytes read from plus bytes written to global memory, each tensor once.
    """

    flops: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything the harness knows about a kernel beyond its source.

    Attributes:
        inputs: Makes the input arrays of a case, in the host function's order.
        work: Arithmetic and traffic of a case.
        cases: Accuracy cases (``l0``, ``l1``, ``boundary``). The first one is the benchmark's default.
        errors: Inputs that must be refused (``l2``).
        tolerance: Legacy gate's class: ``default``, ``large`` or ``fusion``.
    """

    inputs: Callable[[Case, np.random.Generator], tuple[Array, ...]]
    work: Callable[[Case], Work]
    cases: tuple[Case, ...]
    errors: tuple[ErrorCase, ...]
    tolerance: str = "default"

    def __post_init__(self) -> None:
        for name, kind in (("cases", Case), ("errors", ErrorCase)):
            rows = getattr(self, name)
            if not isinstance(rows, tuple | list) or not all(isinstance(row, kind) for row in rows):
                raise TypeError(f"tests/spec.py: Spec.{name} must be a tuple of {kind.__name__}(…)")
        names = [case.name for case in self.cases] + [error.name for error in self.errors]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"tests/spec.py: case names must be unique; used more than once: {', '.join(twice)}")
