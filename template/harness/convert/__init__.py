"""Expert to Developer: rewrites a kernel that places buffers and synchronises by hand into one that lets the compiler.

What is safe is rewritten, comments and formatting kept. What needs a person is left as it is, with a comment that says
why. Works on any TileLang-Ascend file; nothing is executed.
"""

from harness.convert.developer import Conversion, Note, convert

__all__ = ["Conversion", "Note", "convert"]
