"""The real thing: CANN's compiler and an Ascend NPU. Loads torch and torch_npu only where it is asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from harness.project import Project
from harness.spec import Array


class DeviceError(Exception):
    """The NPU, torch_npu or CANN is missing or failed; the message says what to do."""


def missing_npu() -> str | None:
    """Why there is no NPU to run on, or None where there is one."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    try:
        import torch_npu  # noqa: F401  (registers torch.npu)
    except ImportError:
        return "torch_npu is not installed"
    except Exception as error:  # a broken driver raises anything
        return f"torch_npu does not load: {error}"
    return None if torch.npu.is_available() else "torch_npu finds no NPU (is the driver loaded? see npu-smi info)"


def missing_cann() -> str | None:
    """Why CANN's device compiler can't be used, or None where it can."""
    if not os.environ.get("ASCEND_HOME_PATH"):
        return "the CANN toolkit is not set up (ASCEND_HOME_PATH is unset; source its set_env.sh)"
    if shutil.which("bisheng") is None:
        return "CANN is set up but its compiler bisheng is not on PATH (source set_env.sh again)"
    return None


class NpuDevice:
    """One NPU. Under pytest-xdist every worker takes its own where there are several."""

    name = "NPU"

    def __init__(self, project: Project) -> None:
        reason = missing_npu()
        if reason:
            raise DeviceError(reason)
        import torch

        self._torch: Any = torch
        self._project = project
        self.index = worker_index() % int(torch.npu.device_count())
        torch.npu.set_device(self.index)

    def run(self, inputs: Sequence[Array], options: Mapping[str, Any]) -> tuple[Array, ...]:
        tensors = [self._to_tensor(array) for array in inputs]
        result = getattr(self._project.package(), self._project.name)(*tensors, **options)
        self._torch.npu.synchronize()
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        return tuple(self._to_array(output) for output in outputs)

    def _to_tensor(self, array: Array) -> Any:
        if array.dtype.name == "bfloat16":  # NumPy has no bfloat16 that torch would accept: hand over the bits
            tensor = self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        else:
            tensor = self._torch.from_numpy(array)
        return tensor.to(f"npu:{self.index}")

    def _to_array(self, tensor: Any) -> Array:
        host = tensor.cpu()
        if host.dtype == self._torch.bfloat16:
            import ml_dtypes

            host, dtype = host.view(self._torch.int16), np.dtype(ml_dtypes.bfloat16)
            return cast(Array, host.numpy().view(dtype))
        return cast(Array, host.numpy())


def worker_index() -> int:
    """Number of this pytest-xdist worker, from 0; 0 without xdist."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0)


def compile_device_binary(project: Project, arguments: Mapping[str, Any], *, time_limit: float = 600.0) -> None:
    """Lets TileLang build the device binary with bisheng, in a child process of this interpreter.

    Raises:
        DeviceError: It failed or took longer than the time limit, in seconds.
    """
    program = (
        "import importlib.util as u, json, sys\n"
        "path, name, arguments = sys.argv[1:]\n"
        "spec = u.spec_from_file_location('kernel', path)\n"
        "module = u.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "getattr(module, name)(**json.loads(arguments))\n"
    )
    command = [sys.executable, "-c", program, str(project.kernel), project.name, json.dumps(dict(arguments))]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=time_limit, cwd=project.root
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(f"bisheng has not finished after {time_limit:.0f} s") from None
    if done.returncode:
        raise DeviceError(f"exit status {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
