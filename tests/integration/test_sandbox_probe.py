"""Whether bubblewrap works here, asked as the command line asks it."""

from __future__ import annotations

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
