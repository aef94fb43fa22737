"""2xx: scopes, flags and barriers against the switches and against each other."""

from __future__ import annotations

from collections.abc import Iterator

from harness.rules.model import Module
from harness.rules.registry import Context, Hit, rule


@rule(
    "TLA201", "combine-with-scope", "AUTO_CV_COMBINE splits the kernel itself; a T.Scope in it crashes or miscomputes."
)
def combine_with_scope(module: Module, context: Context) -> Iterator[Hit]:
    for factory in module.factories:
        if not factory.config.on("auto_cv_combine"):
            continue
        for kernel in factory.kernels:
            for frame in dict.fromkeys(f for op in kernel.operations for f in op.frames if f.kind == "scope"):
                yield Hit(
                    frame.node,
                    f"T.Scope({frame.name!r}) while TL_ASCEND_AUTO_CV_COMBINE is on",
                    "remove the T.Scope and dedent its body, or switch AUTO_CV_COMBINE off",
                )
