"""Where commands cannot be ranked, they share the cores plainly, and the manager says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from callsheet.cli.up_command import note_core_sharing
from callsheet.deploy import checks
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox import ranking
from callsheet.managers.sandbox.build import build_test_suite_executor
from callsheet.managers.sandbox.node_sharing import lanes
from callsheet.managers.sandbox.node_sharing.lanes import LaneMethod
from callsheet.managers.sandbox.ranking import ranking_problem
from callsheet.managers.sandbox.settings import CoreSharing, Isolation, SandboxSettings

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path: Path) -> SandboxSettings:
    made = SandboxSettings("ranking", tmp_path, isolation=Isolation.NONE, use_control_groups=False)
    return replace(made, core_sharing=CoreSharing.RANKED)


def _without_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "process_lane_method", lambda: LaneMethod.NONE)


async def test_commands_that_cannot_be_ranked_share_plainly(
    settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without_lanes(monkeypatch)
    assert "no writable cpu control group" in ranking_problem(Isolation.NONE, use_control_groups=False)
    executor = build_test_suite_executor(settings)
    try:
        assert executor.capabilities()["core_sharing"] == "plain"
        assert executor.capabilities()["lanes"] == "none: commands are not ranked"
        assert executor.services()[0].shared["cpu"] == len(settings.cores)
        assert "cores_shared_plainly" in capsys.readouterr().out
    finally:
        await executor.close()


async def test_what_is_reserved_is_not_shared(settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_lanes(monkeypatch)
    executor = build_test_suite_executor(replace(settings, core_sharing=CoreSharing.RESERVED))
    try:
        assert executor.capabilities()["core_sharing"] == "reserved"
        assert not executor.services()[0].shared
    finally:
        await executor.close()


async def test_some_of_the_cores_can_be_left_to_others(settings: SandboxSettings) -> None:
    some = replace(settings, cores=frozenset({0, 1, 2}), shared_cores=2, core_sharing=CoreSharing.PLAIN)
    executor = build_test_suite_executor(some)
    try:
        assert executor.services()[0].shared["cpu"] == 2
    finally:
        await executor.close()


@pytest.mark.parametrize("shared", [0, 2])
def test_shared_cores_must_be_some_of_the_cores(settings: SandboxSettings, shared: int) -> None:
    with pytest.raises(ValueError, match="shared_cores"):
        replace(settings, cores=frozenset({0}), shared_cores=shared)


def test_groups_of_containers_rank_only_where_they_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "container_layout", lambda _: None)
    assert "containers" in ranking_problem(Isolation.DOCKER)


def test_up_says_in_one_line_where_commands_are_not_ranked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "ranking_problem", lambda _: "there are no lanes")
    note_core_sharing(StackSettings(tmp_path, given={"share_cores": CoreSharing.RESERVED}))
    assert capsys.readouterr().err == ""
    note_core_sharing(StackSettings(tmp_path))
    assert capsys.readouterr().err == "commands share the cores plainly and are not ranked: there are no lanes\n"
