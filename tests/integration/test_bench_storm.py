"""`callsheet bench storm` as small as it gets: that it measures and what it prints, not what it says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from callsheet.benchmarks.storm.run import StormReport, StormResult
from callsheet.benchmarks.storm.settings import StormSettings

from tests.support.root_filesystems import require_overlays


@pytest.mark.nightly
def test_a_small_storm_is_told_as_one_object() -> None:
    require_overlays()
    sizes = ("--resets", "4", "--images", "2", "--hosts", "2")
    command = [sys.executable, "-m", "callsheet.cli.main", "bench", "storm", *sizes, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    # A storm as small as that may miss its bar.
    assert ran.returncode in {0, 1}, ran.stderr
    told = json.loads(ran.stdout)
    assert [(each["resets"], each["images"], each["hosts"]) for each in told["results"]] == [(4, 2, 2)]
    assert all(each["failed"] == 0 and each["creates_per_cpu_s"] > 0 for each in told["results"])


def test_several_hosts_are_held_to_one_and_failures_to_none() -> None:
    alone, three = (StormResult(100, 1, hosts, 1.0, 2.0, 2.0, 0, made) for hosts, made in ((1, 20.0), (3, 17.0)))
    bars = StormReport({}, (alone, three)).bars
    assert [bar.met for bar in bars] == [True, False]
    assert bars[1].value == pytest.approx(0.85)


def test_a_storm_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="images"):
        StormSettings(images=(0,))
