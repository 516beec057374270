"""Small root file systems of real programs, made from this machine's own."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from callsheet.managers.sandbox.launcher_client import probe_overlays

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
        found = shutil.which(program)
        assert found is not None, program
        shutil.copy(Path(found).resolve(), directory / "bin" / program)
        listed = subprocess.run(["ldd", found], check=True, capture_output=True, text=True).stdout
        for library in _LIBRARY.findall(listed):
            target = directory / str(library).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy(Path(library).resolve(), target)
    return directory


def require_overlays() -> None:
    """Skips the test, saying why, where the kernel mounts no overlays for this user."""
    require_bubblewrap()
    probe = probe_overlays()
    if not probe.works:
        pytest.skip(f"overlays do not work here: {probe.reason}")
