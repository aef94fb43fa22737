"""The virtual NPU: runs the compiler's ``pto`` output on this machine's CPU.

`build` compiles generated code against the PTO-ISA headers of the installed compiler, `run` executes it. What the
numbers are worth is in README.md beside this file.
"""

LIMITS = (
    "not seen by the virtual NPU: missing barriers between the pipes of a core, misaligned addresses, time "
    "(harness/vnpu/README.md)"
)
