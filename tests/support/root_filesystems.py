"""Small root file systems of real programs, made from this machine's own."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from callsheet.managers.sandbox.isolation.launcher_client import probe_overlays

from tests.support.sandboxes import require_bubblewrap

PROGRAMS = ("sh", "cat", "ls", "mkdir", "rm", "mv", "ln", "id", "touch", "chmod", "stat", "sleep", "tar", "head", "wc")
_LIBRARY = re.compile(r"(/\S+) \(0x[0-9a-f]+\)")


def make_root(directory: Path, programs: Sequence[str] = PROGRAMS) -> Path:
    """Makes a root file system with some programs and what they need to run; it has neither Python nor /usr."""
    for name in ("bin", "etc", "tmp"):
        (directory / name).mkdir(parents=True)
    (directory / "tmp").chmod(0o1777)
    (directory / "etc" / "image-name").write_text(f"{directory.name}\n")
    (directory / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    for program in programs:
        found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert found is not None, program
        copy_program(Path(found), directory, Path("bin"))
    return directory


def copy_program(program: Path, root: Path, place: Path) -> None:
    """Copies a program into a directory of a root, and what it is linked with to where that is."""
    (root / place).mkdir(parents=True, exist_ok=True)
    shutil.copy(program.resolve(), root / place / program.name)
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    for library in _LIBRARY.findall(listed):
        target = root / str(library).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(Path(library).resolve(), target)


def require_overlays() -> None:
    """Skips the test, saying why, where the kernel mounts no overlays for this user."""
    require_bubblewrap()
    probe = probe_overlays()
    if not probe.works:
        pytest.skip(f"overlays do not work here: {probe.reason}")


def make_apt_root(directory: Path) -> Path:
    """Makes a root file system in which apt-get installs the package `greeting` of a repository that is in it."""
    programs = ("apt-get", "chown", "dpkg", "dpkg-deb", "dpkg-split", "diff", "find", "ldconfig", "start-stop-daemon")
    make_root(directory, (*PROGRAMS, *programs))
    for name in ("usr/bin", "usr/sbin", "sbin"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).symlink_to("../bin" if name.startswith("usr") else "bin")
    for method in ("file", "copy", "store"):
        copy_program(Path("/usr/lib/apt/methods") / method, directory, Path("usr/lib/apt/methods"))
    shutil.copytree("/usr/share/dpkg", directory / "usr/share/dpkg")
    for name in (
        *("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/lib/apt/lists/partial"),
        *("var/cache/apt/archives/partial", "etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/log/apt", "repository"),
    ):
        (directory / name).mkdir(parents=True)
    (directory / "var/lib/dpkg/status").touch()
    with (directory / "etc/passwd").open("a") as file:
        file.write("_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n")
    (directory / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (directory / "etc/apt/sources.list").write_text("deb [trusted=yes] file:/repository ./\n")
    _make_package(directory.parent / "greeting", directory / "repository")
    return directory


def _make_package(content: Path, repository: Path) -> None:
    """Makes a package of one file, whose script at the end of its installation makes another one."""
    control = "Package: greeting\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: greets\n"
    (content / "DEBIAN").mkdir(parents=True)
    (content / "usr/share/greeting").mkdir(parents=True)
    (content / "usr/share/greeting/file").write_text("good morning\n")
    (content / "DEBIAN/control").write_text(control)
    script = content / "DEBIAN/postinst"
    script.write_text(
        "#!/bin/sh\nset -e\nchown root:root /usr/share/greeting\necho configured >/usr/share/greeting/made\n"
    )
    script.chmod(0o755)
    package = repository / "greeting.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", content, package], check=True, capture_output=True)
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    where = f"Filename: ./greeting.deb\nSize: {package.stat().st_size}\nSHA256: {digest}\n\n"
    (repository / "Packages").write_text(control + where)
