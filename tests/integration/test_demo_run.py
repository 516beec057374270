"""The whole demo, small, with real processes for everything; without isolation, as on machines that allow none."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from callsheet.benchmarks.demo import run, scripted
from callsheet.benchmarks.demo.inputs import prepare_inputs
from callsheet.benchmarks.demo.run import run_demo, run_on_stack
from callsheet.benchmarks.demo.settings import DemoSettings, choose_cpus, choose_trajectories
from callsheet.benchmarks.runner import render
from callsheet.client import ClientOptions
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.environments.coding.packages import SourceReleaseError
from callsheet.managers.sandbox.settings import Isolation
from rich.console import Console


async def _no_warm_up(*_: object) -> None:
    """Runs no episodes that are not counted."""


@pytest.fixture
def thinks_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations of a few tokens: their number is the engine's time, and no other path."""
    monkeypatch.setattr(scripted, "thinking_tokens", lambda _: 8)


# `.ci/run` runs the whole demo, and plain processes have the same workload below.
@pytest.mark.nightly
@pytest.mark.anyio
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("thinks_little")
async def test_the_demo_falls_back_to_plain_processes_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLSHEET_BWRAP", str(tmp_path / "there-is-none"))
    # Cold caches change what is measured, which is not looked at here.
    monkeypatch.setattr(run, "_warm_up", _no_warm_up)
    # The episode of this seed is short, and so is the test suite of its package.
    settings = DemoSettings(seed=8, trajectories=1, cpus=2, data_dir=tmp_path / "data")
    try:
        prepare_inputs(settings.cache, lambda _: None)
    except SourceReleaseError as error:
        pytest.skip(f"the demo's inputs: {error}")
    said: list[str] = []
    report = await run_demo(settings, said.append)
    assert report.isolation == "none"
    assert any(text.startswith("NO ISOLATION: bubblewrap does not work here") for text in said)
    assert all(bar.met for bar in report.bars)
    for mode in (report.callsheet, report.reserved):
        assert set(mode.kinds) == {"generate", "env_reset", "env_step", "reward"}
        assert mode.kinds["env_reset"].count == 1
        assert mode.kinds["reward"].count == 2
        assert mode.kinds["generate"].count == mode.kinds["env_step"].count
        assert mode.rewards.bugs_total == 1
        assert mode.resources.cores == 1
    assert {kind: figures.count for kind, figures in report.callsheet.kinds.items()} == {
        kind: figures.count for kind, figures in report.reserved.kinds.items()
    }
    assert report.act_speedup > 0


@pytest.mark.anyio
async def test_isolation_that_was_asked_for_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLSHEET_BWRAP", str(tmp_path / "there-is-none"))
    settings = DemoSettings(isolation=Isolation.BUBBLEWRAP, data_dir=tmp_path / "data")
    try:
        prepare_inputs(settings.cache, lambda _: None)
    except SourceReleaseError as error:
        pytest.skip(f"the demo's inputs: {error}")
    with pytest.raises(ValueError, match="isolation: bubblewrap: does not work here"):
        await run_demo(settings, lambda _: None)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(SourceReleaseError, match=r"cache: .*XDG_CACHE_HOME"):
        prepare_inputs(occupied / "cache", lambda _: None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"seed": -1}, "seed: -1"), ({"trajectories": 0}, "trajectories: 0"), ({"cpus": 1}, "cpus: 1")],
)
def test_settings_are_checked(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DemoSettings(**wrong)  # type: ignore[arg-type]


def test_the_machine_decides_what_is_not_set() -> None:
    settings = DemoSettings()
    assert [choose_cpus(settings, available) for available in (2, 8, 64)] == [2, 8, 8]
    assert [choose_trajectories(settings, cores) for cores in (1, 2, 6)] == [8, 8, 24]
    assert choose_cpus(DemoSettings(cpus=3), 64) == 3
    assert choose_trajectories(DemoSettings(trajectories=5), 6) == 5
    with pytest.raises(ValueError, match="cpus: 1 available"):
        choose_cpus(settings, 1)


@pytest.mark.nightly
@pytest.mark.anyio
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("thinks_little")
async def test_the_workload_runs_on_a_stack_that_is_there(tmp_path: Path) -> None:
    try:
        inputs = prepare_inputs(DemoSettings().cache, lambda _: None)
    except SourceReleaseError as error:
        pytest.skip(f"the demo's inputs: {error}")
    stack_settings = StackSettings(
        data_dir=tmp_path,
        cpus=2,
        given={"isolation": Isolation.NONE},
        arguments={Role.SANDBOX: ["--stage", str(inputs.staged)]},
    )
    async with local_stack(stack_settings) as stack:
        settings = DemoSettings(scheduler=stack.address, trajectories=1, job="mine")
        report = await run_on_stack(ClientOptions(), settings, lambda _: None)
    assert all(bar.met for bar in report.bars)
    assert report.run.kinds["env_reset"].count == 1
    assert "resources" not in report.as_json()
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(render(report))
    assert f"{report.run.rewards.solved} of 1 episodes solved" in console.export_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [({"job": "mine"}, "job: must not be given"), ({"scheduler": "h:1", "data_dir": Path("d")}, "data_dir: must not")],
)
def test_options_that_do_not_fit_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DemoSettings(**options)
