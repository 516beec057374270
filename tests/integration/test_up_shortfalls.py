"""What `callsheet up` says of the sandboxes of its machine before they are there."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.cli.up_command import note_isolation
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.settings import Isolation

from tests.support.sandboxes import require_bubblewrap


def test_one_line_says_what_this_machine_does_not_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_bubblewrap()
    note_isolation(StackSettings(tmp_path))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("callsheet: not bounded for each sandbox on this machine: ")
    assert line.endswith("the bandwidth of memory and disks")


def test_without_isolation_the_one_line_is_that_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_isolation(StackSettings(tmp_path, given={"isolation": Isolation.NONE}))
    (line,) = capsys.readouterr().err.splitlines()
    assert "NOT ISOLATED" in line
