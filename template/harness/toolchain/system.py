"""The private system: packages of Debian for arm64, fetched with the machine's own apt and unpacked.

apt works on a state of its own below the temporary folder, so that neither root nor the machine's package lists are
touched. It verifies the archive's signature with Debian's keyring and every package by the signed index.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from harness.toolchain import recipe
from harness.toolchain.commands import Commands
from harness.toolchain.errors import ToolchainError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
TOOLS = ("apt-get", "apt-config", "dpkg-deb", "tar")
SUITES = ("bullseye", "bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing", "unstable")
OTHERWISE = (
    "The toolchain's private system comes from a Debian archive. On a machine that does not use one, give its address "
    "with `--mirror` and its keyring (package debian-archive-keyring) with `--keyring`; or set TILELANG_PYTHON to a "
    "Python which can import TileLang-Ascend."
)


def fetch(sysroot: Path, work: Path, commands: Commands, *, mirror: str = "", keyring: Path | None = None) -> list[str]:
    """Fills ``sysroot`` with the packages of the recipe.

    Args:
        sysroot: Folder to make.
        work: Temporary folder for apt's state and the packages.
        commands: Runs the programs.
        mirror: Address of a Debian archive; by default that of the machine's own apt configuration.
        keyring: The archive's keys.

    Returns:
        The packages with their versions, as ``libc6_2.41-12_arm64``.

    Raises:
        ToolchainError: apt, the keyring or the mirror is missing, or a download failed or was not signed.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise ToolchainError(f"{', '.join(missing)} not found: this is not a Debian-like system", OTHERWISE)
    keyring = keyring or KEYRING
    if not keyring.is_file():
        raise ToolchainError(f"Debian's archive keys are missing: no {keyring}",
                             "`apt-get install debian-archive-keyring` brings them. " + OTHERWISE)  # fmt: skip
    environment = {**os.environ, "APT_CONFIG": str(work / "apt.conf"), "LC_ALL": "C"}
    _configure(work, mirror or _mirror(commands), keyring, _transport(commands))
    what, fix = "fetching Debian packages", "Check the network and the mirror, then run the same command again."
    packages = work / "packages"
    packages.mkdir()
    update = ["apt-get", "update", "--error-on=any"]
    commands.run(update, what=what, fix=fix, environment=environment)
    commands.run(["apt-get", "download", *recipe.PACKAGES], what=what, fix=fix, environment=environment, cwd=packages)
    (sysroot / "usr" / "lib").mkdir(parents=True)
    (sysroot / "lib").symlink_to("usr/lib")  # the programs name their loader /lib/ld-linux-aarch64.so.1
    archives = sorted(packages.glob("*.deb"))
    excluded = [f"--exclude={pattern}" for pattern in recipe.LEFT_OUT_OF_PACKAGES]
    for archive in archives:
        tar = work / "package.tar"
        commands.run(["dpkg-deb", "--fsys-tarfile", str(archive)], what="unpacking", output=tar)
        unpack = ["tar", "-xf", str(tar), "-C", str(sysroot), "--no-same-owner", "--keep-directory-symlink"]
        commands.run([*unpack, *excluded], what=f"unpacking {archive.name}")
        tar.unlink()
    return [archive.stem.replace("%3a", ":") for archive in archives]


def _mirror(commands: Commands) -> str:
    """The address of the Debian archive that this machine uses."""
    listing = commands.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        what="reading the machine's apt configuration",
        fix=OTHERWISE,
    )
    for line in listing.splitlines():
        address, _, suite = line.partition(" ")
        if suite in SUITES and not address.startswith("cdrom:"):
            return address.rstrip("/")
    raise ToolchainError("the machine's apt configuration names no Debian archive", OTHERWISE)


def _transport(commands: Commands) -> str:
    """Proxies and the like, which the private configuration must keep."""
    dump = commands.run(["apt-config", "dump", "Acquire"], what="reading the machine's apt configuration")
    kept = ("Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::ForceIPv4", "Acquire::socks")
    return "\n".join(line for line in dump.splitlines() if line.startswith(kept) and not line.endswith(' "";'))


def _configure(work: Path, mirror: str, keyring: Path, transport: str) -> None:
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    (work / "state" / "status").touch()
    (work / "sources.list").write_text(f"deb [arch=arm64 signed-by={keyring}] {mirror} {recipe.RELEASE} main\n")
    nothing = "".join(
        f'Dir::Etc::{part} "/dev/null";\n'
        for part in ("main", "parts", "sourceparts", "preferences", "preferencesparts", "trusted", "trustedparts")
    )
    (work / "apt.conf").write_text(
        f"""{transport}
Dir::State "{work}/state";
Dir::State::status "{work}/state/status";
Dir::Cache "{work}/cache";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Dir::Etc::sourcelist "{work}/sources.list";
{nothing}APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
APT::Sandbox::User "";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::Languages "none";
"""
    )
