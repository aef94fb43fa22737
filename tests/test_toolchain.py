"""The managed toolchain: installed from nothing, by two at once, after a kill; and every way it can fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.toolchain import install as installation
from harness.toolchain import layout, recipe, system, wheels
from harness.toolchain.commands import Commands
from harness.toolchain.errors import ToolchainError
from harness.toolchain.layout import Prefix

TEMPLATE = Path(layout.__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache; returns where toolchains go."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TILELANG_PYTHON", raising=False)
    return layout.home()


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "harness", "toolchain", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TEMPLATE), **environment},
    )


def wait_for_downloads(home: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not list(home.glob("new-*/*/")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)


def left(home: Path) -> list[str]:
    return sorted(path.name for path in home.iterdir() if path.name != "lock") if home.exists() else []


@pytest.mark.network
def test_install_from_nothing(cache: Path) -> None:
    """Ctrl-C leaves nothing; a kill leaves what the next run clears; two at once share one installation."""
    interrupted = start("install")
    wait_for_downloads(cache, interrupted)
    interrupted.send_signal(signal.SIGINT)
    _, errors = interrupted.communicate(timeout=30)
    assert interrupted.returncode == 130
    assert "Traceback" not in errors
    assert left(cache) == []

    killed = start("install")
    wait_for_downloads(cache, killed)
    killed.kill()
    killed.communicate(timeout=30)
    stale = left(cache)
    assert len(stale) == 1

    both = [start("install"), start("install")]
    ended = [process.communicate(timeout=500) for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    root = cache / layout.recipe_hash()
    assert {output.strip() for output, _ in ended} == {str(root)}
    errors = "".join(text for _, text in ended)
    assert errors.count("waiting for it") == 1
    assert errors.count(f"TileLang-Ascend {recipe.COMPILER_VERSION} installed in") == 1
    assert "MB of disk needed" in errors
    assert left(cache) == [root.name]

    facts = Prefix(root, layout.machine()).facts()
    assert facts["bytes"] < recipe.INSTALLED
    assert any(package.startswith("libc6_2.41") for package in facts["system"])
    prefix = layout.installed()
    assert prefix is not None
    assert list(prefix.package.glob("3rdparty/pto-isa/include/pto/*.hpp"))
    assert list(prefix.package.glob("src/tl_templates/pto/common.h"))
    assert not (prefix.package / "3rdparty/cutlass").exists()

    if prefix.processor == "x86_64":  # what aarch64 uses, the private dynamic loader, run under the emulator
        native = Prefix(root, "aarch64")
        program = "import numpy, sys; print(sys.version_info[:2], sys.prefix)"
        done = subprocess.run(
            [str(prefix.emulator), *native.command, "-c", program],
            env={**native.environment, "QEMU_CPU": "cortex-a72"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == f"(3, 13) {native.sysroot}/usr", done.stderr

    status, _ = start("status", "--json").communicate()
    assert json.loads(status)["installed"] is True
    removed, _ = start("remove").communicate()
    assert "MB freed" in removed
    assert left(cache) == []
    absent = start("status")
    assert "not installed" in absent.communicate()[0]
    assert absent.returncode == 1


# Downloads that fail.


@pytest.mark.network
def test_index_without_the_wheels(cache: Path) -> None:
    process = start("install", PIP_NO_INDEX="1", PIP_FIND_LINKS="/nowhere", PIP_EXTRA_INDEX_URL="")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert "failed (" in errors
    assert "No matching distribution found for" in errors
    assert "Check the network and pip's configuration" in errors
    assert left(cache) == []


@pytest.mark.network
def test_wheel_with_another_hash(tmp_path: Path) -> None:
    pinned = next(line for line in recipe.LIBRARY_WHEELS if line.startswith("cloudpickle"))
    forged = pinned.split("sha256:")[0] + "sha256:" + "0" * 64
    with pytest.raises(ToolchainError, match=r"downloading cloudpickle==\S+ failed(.|\n)*(?i:hash)"):
        wheels.download([forged], recipe.LIBRARY_TAGS, tmp_path / "wheels", Commands())
    assert not list(tmp_path.rglob("*.whl"))


@pytest.mark.network
def test_archive_signed_with_another_key(tmp_path: Path) -> None:
    other = next((path for path in Path("/usr/share/keyrings").glob("*removed-keys.gpg")), None)
    if other is None:
        pytest.skip("no keyring here that has other keys")
    with pytest.raises(ToolchainError, match=r"(?i)not signed|NO_PUBKEY|couldn't be verified"):
        system.fetch(tmp_path / "sysroot", tmp_path, Commands(), keyring=other)
    assert not (tmp_path / "sysroot").exists()


def test_mirror_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"(?s)fetching Debian packages failed.*Check the network and the mirror"):
        system.fetch(tmp_path / "sysroot", tmp_path, Commands(), mirror="file:///nowhere")


# Machines that lack something.


def test_no_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"apt-get, apt-config, dpkg-deb, tar not found(.|\n)*TILELANG_PYTHON"):
        system.fetch(tmp_path / "sysroot", tmp_path, Commands())


def test_no_keyring(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"apt-get install debian-archive-keyring"):
        system.fetch(tmp_path / "sysroot", tmp_path, Commands(), keyring=tmp_path / "absent.gpg")


def test_machine_of_another_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    double = tmp_path / "apt-get"
    double.write_text("#!/bin/sh\necho 'http://archive.example.invalid/ubuntu/ noble'\n")
    double.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ToolchainError, match=r"names no Debian archive\n.*--mirror"):
        system.fetch(tmp_path / "sysroot", tmp_path, Commands())


def test_other_processor(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "machine", lambda: "riscv64")
    with pytest.raises(ToolchainError, match=r"no toolchain for posix on riscv64.*\n.*TILELANG_PYTHON"):
        installation.install()


def test_environment_without_pip(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    program = (
        "import os, subprocess; from harness.toolchain.wheels import pip; command, extra = pip();"
        "print(subprocess.run([*command, '--version'], env={**os.environ, **extra}, capture_output=True).stdout)"
    )
    environment = {**os.environ, "PYTHONPATH": str(TEMPLATE)}
    done = subprocess.run(
        [str(venv / "bin/python"), "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("b'pip "), done.stderr


# Disks.


def test_too_little_space_is_said_before_anything_is_fetched(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ToolchainError, match=r"1,000,000,000,000 MB needed, only [\d,]+ MB free\n.*XDG_CACHE_HOME"):
        installation.install(needed=10**18)
    assert left(cache) == []
    assert "of disk needed" in capsys.readouterr().err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.network
def test_disk_that_fills_up(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    with pytest.raises(ToolchainError, match=r"(?i)no space left on device") as caught:
        installation.install(needed=0)
    assert "XDG_CACHE_HOME" in str(caught.value)
    assert left(layout.home()) == []


def test_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    with pytest.raises(ToolchainError, match=r"/dev/null/cache.*Not a directory\n.*XDG_CACHE_HOME"):
        installation.install()
