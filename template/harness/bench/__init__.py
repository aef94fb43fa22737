"""``python -m harness bench``: measures the kernel on an NPU, or estimates it without one, and compares the results."""
