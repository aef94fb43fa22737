"""The virtual clock: how long a kernel would take, without a device.

`estimate` builds the compiler's ``pto`` output in the cost model of the installed PTO-ISA headers, records the
instruction stream of every core and schedules it: in-order pipes, flags, barriers, cross-core flags, blocks over cores.
"""

from harness.clock.estimate import ACCURACY, SLACK, Estimate, Hot, Step, estimate
from harness.clock.model import Chip, Extra, find_chip
from harness.clock.trace import ClockError

__all__ = ["ACCURACY", "SLACK", "Chip", "ClockError", "Estimate", "Extra", "Hot", "Step", "estimate", "find_chip"]
