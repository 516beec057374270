"""`callsheet bench dashboard` as small as it gets: that it measures and what it prints, not what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from callsheet.benchmarks.dashboard.run import DashboardReport, ViewFigures
from callsheet.benchmarks.dashboard.seeded import JOBS, write_journal
from callsheet.benchmarks.dashboard.settings import DashboardBenchSettings

from tests.support.journals import JournalPlace

_SIZES = ("--live", "100", "--ended", "400", "--looks", "2", "--clients", "2", "--rate", "50", "--seconds", "1")


def test_a_small_journal_is_told_as_one_object() -> None:
    words = ("bench", "dashboard", *_SIZES, "--repetitions", "1", "--json")
    command = [sys.executable, "-m", "callsheet.cli.main", *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    # A load as small as that may miss its bars.
    assert ran.returncode in {0, 1}, ran.stderr
    told = json.loads(ran.stdout)
    assert all(0 < each["p50_ms"] <= each["p99_ms"] and each["size_kb"] > 0 for each in told["views"].values())
    assert {"stuck", "trajectory", "group", "step"} <= told["views"].keys()
    assert len(told["cpu_ms"]) == 1
    assert told["pages_per_s"] > 0


def test_the_slowest_view_and_the_medians_are_held_to_the_bars() -> None:
    views = {"fast": ViewFigures(1.0, 2.0, 1.0), "slow": ViewFigures(1.0, 301.0, 1.0)}
    report = DashboardReport({}, views, ((1.0, 1.04), (1.0, 9.0), (1.0, 1.0)), 1.0)
    assert [bar.met for bar in report.bars] == [False, True]
    assert report.more_cpu == pytest.approx(0.04)


def test_a_journal_of_a_seed_is_what_a_scheduler_continues_from(tmp_path: Path) -> None:
    loaded = []
    for name in ("a", "b"):
        write_journal(tmp_path / name, 100, 500, seed=3, now=1e9)
        with JournalPlace(tmp_path / name, None).begun() as journal:
            loaded.append(journal.load())
    first, second = loaded
    assert first == second
    assert [job.job_id for job in first.jobs] == list(JOBS)
    assert sum(each.closed_at is None for each in first.trajectories) == 100
    assert sum(each.closed_at is not None for each in first.trajectories) == 500
    finished = [each for each in first.actions if each.finished_at is not None]
    assert len(finished) == 3 * 500 + 2 * 100
    assert 0 < len(first.actions) - len(finished) < 100
    assert {each.state for each in finished} == {"succeeded", "failed"}


def test_a_journal_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="ended"):
        DashboardBenchSettings(ended=0)
