"""`callsheet bench sim` as small as it gets: that every policy runs and what is printed, not what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.support.command_line import invoke
from tests.support.expected import expect

POLICIES = ("callsheet", "os_sharing")
FIGURES = {"act_mean_s", "act_p99_s", "act_p999_s", "wait_max_s", "start_wait_mean_s", "held", "used", "per_seed"}


def _run(*arguments: str) -> Result:
    return invoke("bench", "sim", "--processes", "1", *arguments)


def _report(*arguments: str) -> dict[str, Any]:
    done = _run("--json", *arguments)
    assert done.exit_code == 0, done.stderr
    return expect(dict, json.loads(done.stdout))


def test_every_policy_is_reported_by_seed_and_as_means() -> None:
    report = _report(
        "--workload", "coding", "--trajectories", "8", "--cores", "4", "--gb-per-core", "4", "--seed", "3",
        "--seeds", "2",
    )  # fmt: skip
    assert (report["workload"], report["mode"], report["gb_per_core"]) == ("coding", "oneshot", 4.0)
    assert report["rho"] > 0
    assert tuple(report["policies"]) == POLICIES
    for name, figures in report["policies"].items():
        assert FIGURES | {"step_s"} <= set(figures), name
        assert [run["seed"] for run in figures["per_seed"]] == [3, 4]
        mean = sum(run["act_mean_s"] for run in figures["per_seed"]) / 2
        assert figures["act_mean_s"] == pytest.approx(mean, rel=1e-4)


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    action = {"kind": "env_step", "label": "test", "duration_s": 1.0, "cpu_s": 0.8}
    trajectory = {
        "id": "one",
        "reset": {"label": "reset", "duration_s": 0.5, "cpu_s": 0.1},
        "turns": [{"generation": {"seconds": 2.0}, "actions": [action]}],
    }
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps(trajectory) + "\n")
    report = _report("--trace", str(trace), "--cores", "2", "--policy", "os_sharing")
    assert report["policies"]["os_sharing"]["act_mean_s"] == pytest.approx(0.75, rel=0.05)


def test_ranges_decide_the_exit_code(tmp_path: Path) -> None:
    ranges = tmp_path / "ranges.toml"
    arguments = ("--workload", "games", "--trajectories", "4", "--policy", "os_sharing", "--check", str(ranges))
    ranges.write_text('[[range]]\npolicy = "os_sharing"\nfigure = "step_s"\nat_least = 0.0\n')
    assert _run(*arguments).exit_code == 0
    ranges.write_text('[[range]]\npolicy = "os_sharing"\nfigure = "step_s"\nat_most = 0.0\n')
    missed = _run(*arguments)
    assert missed.exit_code == 1
    assert "missed: os_sharing step_s: " in missed.stderr


def test_what_is_not_given_is_taken_from_the_ranges(tmp_path: Path) -> None:
    ranges = tmp_path / "ranges.toml"
    ranges.write_text(
        '[arguments]\nworkload = "games"\nmode = "sustained"\ntrajectories = 4\nseeds = [1, 2]\n'
        '[[range]]\npolicy = "os_sharing"\nfigure = "act_mean_s"\nat_least = 0.0\n'
    )
    done = _run("--check", str(ranges), "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["workload"], report["mode"], report["trajectories"], report["seeds"]) == (
        "games", "sustained", 4, [1, 2],
    )  # fmt: skip
    assert set(report["policies"]) == {"os_sharing"}
    refused = _run("--check", str(ranges), "--trajectories", "5")
    assert refused.exit_code == 2
    assert "arguments.trajectories is 4, the report has 5" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--workload", "chess"), "chess"),
        (("--policy", "magic"), "--policy: must be one of callsheet, "),
        (("--cores", "0"), "--cores"),
        (("--rewards", "none such"), "none such"),
    ],
)
def test_bad_input_is_refused_by_name(arguments: tuple[str, ...], says: str) -> None:
    refused = invoke("bench", "sim", *arguments)
    assert refused.exit_code == 2
    assert says in refused.stderr
