"""The demo's figures: records, percentiles, reports and their two forms."""

from __future__ import annotations

import io
import json

import pytest
from callsheet.benchmarks.demo.measurements import (
    ActionRecord,
    failures_by_kind,
    figures_by_kind,
    record_of,
)
from callsheet.benchmarks.demo.modes import CALLSHEET, RESERVED, DemoMode
from callsheet.benchmarks.demo.report import DemoReport, report_of, seconds
from callsheet.benchmarks.demo.workload import EpisodeResult, ModeRun
from callsheet.benchmarks.runner import render
from callsheet.client import (
    ActionKind,
    Cancelled,
    CommandResult,
    Cost,
    Expired,
    Failed,
    FailureKind,
    Succeeded,
    Timeline,
    Usage,
)
from rich.console import Console


def record(
    kind: ActionKind = ActionKind.ENV_STEP, queue_s: float = 0.0, execution_s: float = 1.0, failure: str | None = None
) -> ActionRecord:
    return ActionRecord(kind, "look", failure, queue_s, 0.0, execution_s, 0.5, cpu_s=0.25, core_s=execution_s)


def run_of(mode: DemoMode, queue_s: float) -> ModeRun:
    records = [
        record(ActionKind.GENERATE, queue_s=50.0),
        record(ActionKind.ENV_RESET, queue_s=queue_s),
        record(failure="timeout"),
        record(ActionKind.REWARD),
    ]
    done = EpisodeResult(records, held_core_s=8.0, score=1.0, bug_confirmed=True)
    failed = EpisodeResult([record()], held_core_s=2.0, score=0.5)
    return ModeRun(mode, (done, failed), wall_s=5.0)


def demo_report() -> DemoReport:
    ours, theirs = (report_of(run_of(*arguments), 2) for arguments in ((CALLSHEET, 1.0), (RESERVED, 7.0)))
    return DemoReport(ours, theirs, trajectories=2, seed=0, isolation="bubblewrap", wall_s=12.0)


def test_a_record_holds_the_figures_of_its_outcome() -> None:
    outcome = Succeeded(
        CommandResult(1),
        timeline=Timeline(queue_s=1.0, waited_s={"cores": 2.5, "image": 0.5}, execution_s=2.0, overhead_s=0.25),
        usage=Usage(cpu_s=1.5, cost=Cost({"cpu": 4.0, "memory": 9.0})),
    )
    made = record_of(ActionKind.ENV_STEP, "look", outcome)
    assert made == ActionRecord(ActionKind.ENV_STEP, "look", None, 1.0, 3.0, 2.0, 0.25, 1.5, 4.0)
    assert made.act_s == 6.25


def test_every_outcome_but_success_is_a_failure() -> None:
    failed: Failed[CommandResult] = Failed(FailureKind.TIMEOUT)
    cancelled: Cancelled[CommandResult] = Cancelled()
    kinds = [record_of(ActionKind.ENV_STEP, "", outcome).failure for outcome in (failed, cancelled, Expired())]
    assert kinds == ["timeout", "cancelled", "expired"]
    assert failures_by_kind(
        [record(failure="timeout"), record(), record(failure="timeout"), record(failure="env")]
    ) == {
        "timeout": 2,
        "env": 1,
    }


def test_kinds_come_in_order_and_only_those_there_are() -> None:
    figures = figures_by_kind([record(ActionKind.REWARD), record(ActionKind.GENERATE), record(ActionKind.GENERATE)])
    assert [(kind, figure.count) for kind, figure in figures.items()] == [("generate", 2), ("reward", 1)]
    assert figures["generate"].act_mean_s == 1.5


def test_act_is_of_external_actions_alone() -> None:
    report = demo_report()
    assert report.callsheet.act_mean_s == pytest.approx((2.5 + 1.5 * 3) / 4)
    assert report.act_speedup == pytest.approx((8.5 + 1.5 * 3) / (2.5 + 1.5 * 3))


def test_held_cores_are_grants_or_reservations() -> None:
    report = demo_report()
    assert (report.callsheet.resources.held_core_s, report.reserved.resources.held_core_s) == (4.0, 10.0)
    reserved = report.reserved.resources
    used = (reserved.cpu_s, reserved.idle_while_held, reserved.utilisation)
    assert used == pytest.approx((1.0, 0.9, 0.1))


def test_the_json_has_what_was_promised() -> None:
    value = json.loads(json.dumps(demo_report().as_json(), allow_nan=False))
    assert set(value["kinds"]) == {"generate", "env_reset", "env_step", "reward"}
    promised = {f"{part}_p50_s" for part in ("queue", "waiting", "exec", "overhead")}
    promised |= {"count", "act_mean_s", "act_p99_s"}
    assert all(promised <= set(each) for mode in (value, value["reserved"]) for each in mode["kinds"].values())
    assert (value["failures"], value["wall_s"], value["rewards"]["solved"]) == ({"timeout": 1}, 12.0, 1)
    assert value["act_speedup"] > 1
    assert ("scripted" in value["decisions"], "random weights" in value["tokens"]) == (True, True)


def test_lost_episodes_and_bugs_that_no_test_caught_miss_bars() -> None:
    assert all(bar.met for bar in demo_report().bars)
    bad = [
        EpisodeResult(lost="infra: state_lost"),
        EpisodeResult(bug_confirmed=False),
    ]
    mode = report_of(ModeRun(CALLSHEET, tuple(bad), 1.0), 1)
    missed = [str(bar) for bar in DemoReport(mode, mode, 2, 0, "none", 1.0).bars if not bar.met]
    assert missed[:2] == [
        "callsheet: episodes lost: 1, must be at most 0",
        "callsheet: bugs not caught by their test: 1, must be at most 0",
    ]


def test_a_run_without_any_action_has_a_report() -> None:
    mode = report_of(ModeRun(CALLSHEET, (), 0.0), 1)
    assert DemoReport(mode, mode, 0, 0, "none", 0.0).act_speedup == 0.0


def test_the_tables_show_kinds_failures_and_what_is_scripted() -> None:
    output = io.StringIO()
    Console(file=output, width=80).print(render(demo_report()))
    text = output.getvalue()
    expected = ("env_reset", "failed actions: 1 timeout", "held but idle", "scripted", "random weights", "1.9x")
    assert [each for each in expected if each not in text] == []
    assert "\u2026" not in text, "a column is cut"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.0ms"), (0.0021, "2.1ms"), (0.0123, "12ms"), (0.9999, "1.00s"), (75.0, "75.0s")]
)
def test_times_are_for_people(value: float, text: str) -> None:
    assert seconds(value) == text
