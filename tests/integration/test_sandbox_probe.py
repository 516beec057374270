"""Whether bubblewrap works here, asked as the command line asks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from callsheet.managers.sandbox.probe import probe_bubblewrap

from tests.support.sandboxes import require_bubblewrap


def test_a_working_bubblewrap_says_what_it_can_do() -> None:
    require_bubblewrap()
    result = probe_bubblewrap()
    assert result.works
    assert result.reason == ""
    assert result.bwrap is not None
    assert result.capabilities["isolation"] == "bubblewrap"


def test_a_missing_bubblewrap_is_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CALLSHEET_BWRAP", str(tmp_path / "missing"))
    result = probe_bubblewrap()
    assert not result.works
    assert "bubblewrap" in result.reason
    assert result.bwrap is None


def test_a_bubblewrap_that_is_refused_tells_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refused = tmp_path / "bwrap"
    refused.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refused.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("CALLSHEET_BWRAP", str(refused))
    result = probe_bubblewrap()
    assert not result.works
    assert result.reason


# In a user namespace of its own with other numbers of users, whose limit it sets: as root of that, then as user 1000.
_WITHOUT_NAMESPACES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
asks, told = os.pipe()
above = os.getpid()
if (child := os.fork()) == 0:
    os.read(asks, 1)
    for kind in ("uid", "gid"):
        open(f"/proc/{above}/{kind}_map", "w").write("0 0 1000000")
    os._exit(0)
assert libc.unshare(0x10000000) == 0, os.strerror(ctypes.get_errno())
os.write(told, b"1")
assert os.waitpid(child, 0)[1] == 0
open("/proc/sys/user/max_user_namespaces", "w").write("0")
os.execv(sys.executable, [sys.executable, "-m", "callsheet.managers.sandbox.probe"])
"""


def test_a_setting_that_forbids_namespaces_is_named_with_its_cure() -> None:
    require_bubblewrap()
    if os.geteuid() != 0:
        pytest.skip("only root may map all users into a namespace whose limit it sets")
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_NAMESPACES], check=False, capture_output=True, text=True, timeout=90
    )
    assert "user.max_user_namespaces is 0; as root, `sysctl -w user.max_user_namespaces=" in done.stdout, done
    assert "bwrap: " in done.stdout
