"""The verdict of a soak: what its scheduler's settings allow, and whether anything still grows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.benchmarks.soak.bounds import MIB, SoakLimits, SoakSample, findings
from callsheet.benchmarks.soak.settings import SoakSettings

LIMITS = SoakLimits.of(300.0)
STEADY = [SoakSample(float(at), 100 * at, 90 * at, 200 * MIB, 80 * MIB) for at in range(0, 300, 10)]


def answers(samples: list[SoakSample], database: str = "sqlite") -> list[bool]:
    """Whether memory and disk were within their bounds, and whether they were steady."""
    return [finding.met for finding in findings(database, LIMITS, samples)]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_what_stays_as_it_is_was_bounded(database: str) -> None:
    assert answers(STEADY, database) == [True] * 5


def test_memory_that_grows_for_ever_is_found() -> None:
    growing = [replace(sample, rss=sample.rss + int(sample.at_s * 0.8 * MIB)) for sample in STEADY]
    assert answers(growing) == [True, True, False, True, True]


def test_disk_that_grows_for_ever_is_found() -> None:
    growing = [replace(sample, database=int(sample.at_s * MIB)) for sample in STEADY]
    assert answers(growing, "postgresql") == [True, True, True, False, True]


def test_trajectories_that_stay_for_ever_are_found() -> None:
    growing = [replace(sample, trajectories=int(sample.at_s * 20)) for sample in STEADY]
    assert answers(growing) == [True, True, True, True, False]


def test_one_look_beyond_a_bound_is_enough() -> None:
    beyond = [*STEADY, replace(STEADY[-1], rss=1_000 * MIB, directory=1_000 * MIB)]
    assert answers(beyond)[:2] == [False, False]


def test_a_shorter_soak_has_smaller_bounds() -> None:
    short = SoakLimits.of(10.0)
    assert short.finished_actions < LIMITS.finished_actions
    assert short.finished_bytes < LIMITS.finished_bytes
    assert short.environment["CALLSHEET_FINISHED_ACTIONS_S"] == "1"


def test_an_unknown_database_is_refused() -> None:
    with pytest.raises(ValueError, match="databases"):
        SoakSettings(databases=("oracle",))
