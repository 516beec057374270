"""`callsheet bench soak` as short as it gets: real processes on both databases, and its verdict."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.binaries import require_program

_LIMIT_S = 180


@pytest.mark.timeout(_LIMIT_S + 10)
def test_a_short_soak_is_bounded_and_says_so() -> None:
    require_program("postgres")
    command = [sys.executable, "-m", "callsheet.cli.main", "bench", "soak", "--json"]
    command += ["--duration-s", "12", "--samples", "8", "--actions-per-s", "100"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    found = json.loads(done.stdout)
    assert (done.returncode, found["bounded"]) == (0, True), done.stdout
    assert [each["database"] for each in found["soaks"]] == ["sqlite", "postgresql"]
    for each in found["soaks"]:
        counts = each["counts"]
        assert counts["failed"] == {}
        assert min(counts[name] for name in ("small", "large", "jobs", "unread", "trajectories", "groups", "gone")) > 0
        assert each["samples"][-1]["forgotten"] > 0
        assert (each["samples"][-1]["database"] > 0) == (each["database"] == "postgresql")
