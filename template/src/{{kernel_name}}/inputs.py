"""Checks of tensors before a kernel sees them, for torch tensors and NumPy arrays alike.

The compiled kernel takes whatever it is given, so a wrong shape or type would read or write foreign memory without a
word. Neither torch nor NumPy is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Inputs:
    """Collects the dimensions of a call's tensors and refuses what does not go together.

    Attributes:
        sizes: Elements of every named dimension seen so far.

    Example:
        >>> inputs = Inputs("matmul", device="cpu")
        >>> inputs.tensor("a", a, ("M", "K"), "float16")
        >>> inputs.tensor("b", b, ("K", "N"), "float16")
        >>> inputs.sizes
        {'M': 77, 'K': 64, 'N': 103}
    """

    def __init__(self, function: str, device: str = "npu") -> None:
        """Starts a call.

        Args:
            function: Name shown in messages.
            device: Where the tensors must be: ``npu``, or ``cpu`` (where NumPy arrays are).
        """
        self.function = function
        self.device = device
        self.sizes: dict[str, int] = {}
        self._origin: dict[str, str] = {}

    def tensor(self, name: str, value: Any, dims: Sequence[str | int], dtype: str | Sequence[str]) -> None:
        """Checks one tensor and learns its dimensions.

        Args:
            name: Argument name, for messages.
            value: The tensor.
            dims: One entry per dimension: a name, equal wherever it is used again, or a fixed number of elements.
            dtype: Accepted element type or types, for example ``"float16"``.

        Raises:
            TypeError: Not a tensor, or another element type.
            ValueError: Another rank or size, an empty or non-contiguous tensor, or one on another device.
        """
        for attribute in ("shape", "dtype"):
            if not hasattr(value, attribute):
                raise TypeError(f"{self._where(name)} must be a tensor, got {type(value).__name__}")
        accepted = (dtype,) if isinstance(dtype, str) else tuple(dtype)
        got = element_type(value)
        if got not in accepted:
            raise TypeError(f"{self._where(name)} must be {' or '.join(accepted)}, got {got}; convert it first")
        shape = tuple(int(size) for size in value.shape)
        self._check_shape(name, shape, dims)
        if not is_contiguous(value):
            remedy = _contiguous_copy(name, value)
            raise ValueError(f"{self._where(name)} is not contiguous (a slice or a transposed view); {remedy}")
        place = device_type(value)
        if place != self.device:
            raise ValueError(f"{self._where(name)} is on {place}, the kernel runs on {self.device}; {self._move(name)}")

    def _check_shape(self, name: str, shape: tuple[int, ...], dims: Sequence[str | int]) -> None:
        wanted = "[" + ", ".join(map(str, dims)) + "]"
        if len(shape) != len(dims):
            raise ValueError(
                f"{self._where(name)} must have {len(dims)} dimension{'s' * (len(dims) != 1)} {wanted}, "
                f"got {len(shape)}: {list(shape)}"
            )
        for dim, size in zip(dims, shape, strict=True):
            if size < 1:
                raise ValueError(f"{self._where(name)} is empty: dimension {dim} of {wanted} is {size}")
            known = dim if isinstance(dim, int) else self.sizes.get(dim, size)
            if size != known:
                origin = "" if isinstance(dim, int) else f", but {self._origin[dim]} has {dim} = {known}"
                raise ValueError(
                    f"{self._where(name)}: expected {wanted}{origin or f' with {known} elements there'}, "
                    f"got {list(shape)} ({dim} = {size})"
                )
            if isinstance(dim, str) and dim not in self.sizes:
                self.sizes[dim], self._origin[dim] = size, name

    def _move(self, name: str) -> str:
        return f"pass {name}.npu()" if self.device == "npu" else f"pass {name}.to({self.device!r})"

    def _where(self, name: str) -> str:
        return f"{self.function}: {name}"


def element_type(value: Any) -> str:
    """Name of a tensor's element type: ``float16``, ``bfloat16``, ``int8``, …"""
    return str(value.dtype).removeprefix("torch.")


def is_contiguous(value: Any) -> bool:
    """Whether the elements lie in row-major order without gaps."""
    if callable(getattr(value, "is_contiguous", None)):
        return bool(value.is_contiguous())
    return bool(value.flags.c_contiguous)


def device_type(value: Any) -> str:
    """Kind of device that holds the tensor, without its index; ``cpu`` for NumPy arrays."""
    device = getattr(value, "device", "cpu")
    return str(getattr(device, "type", device))


def _contiguous_copy(name: str, value: Any) -> str:
    is_torch = callable(getattr(value, "contiguous", None))
    return f"pass {name}.contiguous()" if is_torch else f"pass np.ascontiguousarray({name})"
