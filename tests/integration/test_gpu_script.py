"""`make gpu` without a GPU: it says so, and its steps work with tiny models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        # Where this machine has one, it is out of sight.
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )


def test_without_a_gpu_it_says_so_and_fails() -> None:
    done = run()
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == "gpu: there is no GPU here: torch sees no CUDA device; nothing was run"


def test_its_steps_work_on_a_cpu() -> None:
    done = run("--device", "cpu", "--layers", "2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["device"], found["tests"]) == ("cpu", "not run without a GPU")
    # Two layers of 128 in two bytes a number, and what goes in and out.
    assert 2 * 2 * 4 * 128 * 3 * 128 < found["model_bytes"] < 1 << 22
    assert found["publish"]["sglang"].startswith("not run")
    for figures in (found["publish"]["embedded"], found["evict_on_execution"], found["plain_pinned_copy"]):
        assert 0 < figures["median_s"] <= figures["longest_s"]
