"""From generated code to libraries that the driver can run: one per kind of core."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.compiler.cache import digest
from harness.compiler.lowered import Lowered
from harness.vnpu.toolset import CompileError, CompilerNotFound, Profile, find_cxx, library, program

__all__ = ["BuildError", "Built", "CompilerNotFound", "GeneratedKernel", "NotSimulated", "build", "find_cxx", "headers"]

HERE = Path(__file__).parent
KINDS = ("cube", "vector")
GUARDS = {"cube": ("__DAV_C220_CUBE__", "__DAV_C310_CUBE__"), "vector": ("__DAV_C220_VEC__", "__DAV_C310_VEC__")}


class BuildError(Exception):
    """Generated code that does not compile.

    Attributes:
        line: Line of the generated source, from 1; 0 where unknown.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class NotSimulated(BuildError):
    """The kernel uses an instruction, or a form of one, that the simulator lacks.

    Attributes:
        name: The instruction.
    """

    def __init__(self, name: str, message: str, line: int = 0) -> None:
        super().__init__(message, line)
        self.name = name


@dataclass(frozen=True)
class GeneratedKernel:
    """What can be read off a generated source.

    Attributes:
        source: The text.
        name: The kernel function.
        parameters: Its parameters as ``(C++ type, name)``; pointers are tensors, in order.
        grid: The number of blocks, an expression over the scalar parameters.
        kinds: Kinds of core that have something to do.
    """

    source: str
    name: str
    parameters: tuple[tuple[str, str], ...]
    grid: str
    kinds: tuple[str, ...]

    @classmethod
    def parse(cls, source: str) -> GeneratedKernel:
        """Reads a source that the ``pto`` backend generated.

        Raises:
            BuildError: It has no kernel launch.
        """
        launch = re.search(r"(\w+)<<<(.+?), nullptr", source)
        head = launch and re.search(rf"void {launch[1]}\((.*?)\) \{{", source)
        if not launch or not head:
            raise BuildError("the generated source has no kernel launch; is it the output of the pto backend?")
        parameters = []
        for text in head[1].split(","):
            kind, _, name = text.replace("__gm__", "").strip().rpartition(" ")
            parameters.append((kind + "*" * name.count("*"), name.lstrip("*")))
        return cls(source, launch[1], tuple(parameters), launch[2], _kinds(source[head.start() :]))

    def statement(self, line: int) -> str:
        """The text of a line, shortened to what a report can show."""
        lines = self.source.splitlines()
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        return text if len(text) <= 160 else text[:157] + "..."

    def instrumented(self, kind: str) -> str:
        """The source for one kind of core, line by line the same, with every statement announcing its line."""
        source = self.source[: self.source.index('extern "C" void call')]
        lines = []
        inside, complete = False, True
        for number, line in enumerate(source.splitlines(), 1):
            text = line.strip()
            if text.startswith("#include"):
                line = ""  # the prelude has them all
            elif inside and complete and re.match(r"(?!for\b|if\b|else\b|while\b|using\b|return\b|[#}]).*;$", text):
                line = f"VNPU_LINE({number}) {line}"
            inside |= f"void {self.name}(" in line
            if text and not text.startswith("//"):
                complete = text[-1] in ";{}:" or text.startswith("#")
            lines.append(line)
        defines = "".join(f"#define {guard}\n" for guard in GUARDS[kind])
        return f'{defines}#line 1 "kernel.cpp"\n' + "\n".join(lines) + self._exports()

    def _exports(self) -> str:
        """The functions that the driver calls."""
        arguments = ", ".join(
            f"reinterpret_cast<{kind.rstrip('*')} *>(a[{i}])" if "*" in kind else f"static_cast<{kind}>(a[{i}])"
            for i, (kind, _) in enumerate(self.parameters)
        )
        scalars = "".join(
            f"[[maybe_unused]] {kind} {name} = static_cast<{kind}>(a[{i}]); "
            for i, (kind, name) in enumerate(self.parameters)
            if "*" not in kind
        )
        return f"""
VNPU_EXPORT void vnpu_bind(const vnpu::Host *host) {{ vnpu::host = host; }}
VNPU_EXPORT uint64_t vnpu_grid(const uint64_t *a) {{ {scalars}return static_cast<uint64_t>({self.grid}); }}
VNPU_EXPORT void vnpu_entry(vnpu::Core *core, const uint64_t *a) {{
    vnpu::core = core;
    pto::cpu_sim::set_execution_context(core->block, core->sub, 2);
    {self.name}({arguments});
}}
"""


def _kinds(body: str) -> tuple[str, ...]:
    """Kinds of core with code: all that have a guarded part, and both where instructions stand outside of the guards.

    A pure vector kernel compiled without AUTO_CV_COMBINE has no guards at all; on the device its instructions do
    nothing on a cube core (AscendC compiles them to nothing there), so only the vector cores run it.
    """
    if not re.search(r"__DAV_|TileMat|TileAcc|TileLeft|TileRight|gemm|mma<", body):
        return ("vector",)
    found = {kind for kind in KINDS if any(guard in body for guard in GUARDS[kind])}
    depth = 0
    for line in body.splitlines():
        depth += line.startswith("#if")
        if depth == 0 and re.search(r"\b(copy_|gemm|mma|_flag|sync_all|T(?!ASSIGN|ile)[A-Z0-9_]+\()", line):
            found |= set(KINDS)
        depth -= line.startswith("#endif")
    return tuple(kind for kind in KINDS if kind in found)


@dataclass(frozen=True)
class Built:
    """A kernel that can run.

    Attributes:
        lowered: What it was built from.
        kernel: The generated source, taken apart.
        platform: ``A2``, ``A3`` or ``A5``.
        driver: The program that runs it.
        libraries: Shared library by kind of core.
    """

    lowered: Lowered
    kernel: GeneratedKernel
    platform: str
    driver: Path
    libraries: dict[str, Path]


def headers(package: Path) -> tuple[tuple[Path, ...], str]:
    """Include path of the installed device headers, and a stamp that changes when they do.

    Raises:
        BuildError: The package has none.
    """
    include = (package / "3rdparty" / "pto-isa" / "include", package / "src")
    marks = (include[0] / "pto" / "common" / "pto_instr.hpp", include[1] / "tl_templates" / "pto" / "common.h")
    missing = [str(path) for path in marks if not path.is_file()]
    if missing:
        raise BuildError(f"the compiler's package lacks device headers: {', '.join(missing)}")
    return include, digest(*(path.read_text() for path in marks))


def profile(package: Path, platform: str) -> Profile:
    """How kernels are built for their numbers."""
    include, stamp = headers(package)
    return Profile(HERE / "prelude.hpp", include, ("VNPU_A5",) if platform == "A5" else (), stamp)


def build(lowered: Lowered, package: Path, *, platform: str = "") -> Built:
    """Compiles a lowered kernel for this machine; a kernel that was built before costs nothing.

    Args:
        lowered: Output of the ``pto`` backend.
        package: The installed ``tilelang`` folder, for the device headers.
        platform: Of the chip; default: what the kernel was lowered for.

    Raises:
        NotSimulated: The simulator lacks an instruction of the kernel.
        BuildError: The code does not compile.
        CompilerNotFound: This machine has no C++ compiler for it.
    """
    if lowered.target != "pto":
        raise BuildError(f"the virtual NPU runs the pto backend's output, not {lowered.target}'s")
    cxx, kernel, platform = find_cxx(), GeneratedKernel.parse(lowered.source), platform or lowered.platform
    how = profile(package, platform)

    def one(kind: str) -> Path:
        try:
            return library(kernel.instrumented(kind), how, cxx)
        except CompileError as error:
            raise explain(error.log, kernel) from error

    with ThreadPoolExecutor() as pool:  # the C++ compiler is a process of its own
        driver = pool.submit(program, [HERE / "driver.cpp"], cxx, stamp=(HERE / "core.hpp").read_text())
        libraries = dict(zip(kernel.kinds, pool.map(one, kernel.kinds), strict=True))
    return Built(lowered, kernel, platform, driver.result(), libraries)


def explain(log: str, kernel: GeneratedKernel) -> BuildError:
    """Turns the C++ compiler's output into an error that names the generated statement and what is wrong with it."""
    errors = list(re.finditer(r"^(\S+?):(\d+):\d+: (?:fatal )?error: (.*)$", log, re.MULTILINE))
    if not errors:
        return BuildError(f"the C++ compiler failed:\n{log.strip()[-2000:]}")
    first = errors[0]
    at = re.search(r"kernel\.cpp:(\d+):", log[first.start() :]) or re.search(r"kernel\.cpp:(\d+):", log)
    line = int(at[1]) if at else 0
    message = re.sub(r"static assertion failed(?: due to requirement '.*?')?: ", "", first[3]).strip()
    where = f"\n  generated line {line}: {kernel.statement(line)}" if line else ""
    declared = re.search(r"not simulated: ([^\"]*)", message)
    if declared:
        return NotSimulated(declared[1].split()[0].rstrip(":"), f"{declared[1]}{where}", line)
    missing = re.search(r"(?:call to|identifier|for call to|to) '(?:\w+::)*(T[A-Z0-9_]+?)(?:_IMPL)?[(']", message)
    instruction = re.search(r"/pto/cpu/(\w+)\.hpp", first[1])
    if missing or instruction:
        name = missing[1] if missing else instruction[1].upper() if instruction else ""
        return NotSimulated(name, f"{name}: the simulator has no such form of the instruction ({message}){where}", line)
    return BuildError(f"{message}{where}", line)
