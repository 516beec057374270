"""Weights that cannot be published end a training of several processes in all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

WAIT_S = 240.0


def test_all_processes_hear_that_weights_were_not_published(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.trainers.publishing_process"]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        first, second = (process.communicate(timeout=WAIT_S)[0] for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert first.startswith("ConnectionLostError")
    assert second.startswith("WeightsNotProvedError: the first process did not publish")
    assert "ConnectionLostError" in second
