"""`callsheet bench sandbox` as small as it gets: that it measures and what it prints, not what it says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from callsheet.benchmarks.sandbox.run import MOST_OVERHEAD
from callsheet.cli.app import app
from callsheet.managers.sandbox.probe import probe_bubblewrap
from typer.testing import CliRunner

_LIMIT_S = 280
_FIGURES = ("step_p50_ms", "step_p99_ms", "reset_p50_ms", "reset_p99_ms", "creates_per_s", "plain_overhead_share")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "callsheet.cli.main", "bench", "sandbox", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)


# A service for each number, one after another: on a machine that is busy otherwise, minutes.
@pytest.mark.nightly
@pytest.mark.timeout(_LIMIT_S + 10)
def test_one_object_is_printed_for_each_number_of_sandboxes() -> None:
    isolation, numbers = ("bubblewrap" if probe_bubblewrap().works else "none"), [2]
    done = _run(
        "--json", "--isolation", isolation, "--sandboxes", ",".join(map(str, numbers)), "--samples", "2",
        "--long-actions", "1",
    )  # fmt: skip
    found = json.loads(done.stdout)
    # Whether a busy machine adds more to a command than it should is not looked at here.
    assert done.returncode == any(each["overhead_share"] > MOST_OVERHEAD for each in found), done.stderr
    assert [each["sandboxes"] for each in found] == numbers
    for each in found:
        assert [name for name in _FIGURES if not isinstance(each[name], float)] == []
        assert each["step_p99_ms"] >= each["step_p50_ms"]
        assert each["isolation"] == isolation
        assert each["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--sandboxes", "many"), "'--sandboxes': 'many' must be whole numbers"),
        (("--sandboxes", "0"), "sandboxes: (0,) must be at least one number, and each at least 1"),
        (("--samples", "0"), "--samples"),
    ],
)
def test_bad_input_is_refused_by_name(arguments: tuple[str, ...], says: str) -> None:
    refused = CliRunner().invoke(app, ["bench", "sandbox", *arguments])
    assert refused.exit_code == 2
    assert says in refused.stderr


def test_more_sandboxes_than_the_memory_has_room_for_are_refused_before_any_is_made() -> None:
    done = _run("--isolation", "none", "--sandboxes", "1,100000000")
    assert done.returncode == 1
    assert "sandboxes: 100000000 of 32 MiB each, and one more, hold 3200000032 MiB" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
