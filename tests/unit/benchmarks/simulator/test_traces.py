"""Replay of recorded trajectories. All rows here are made up."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from callsheet.benchmarks.simulator import traces
from callsheet.benchmarks.simulator.policies import POLICIES
from callsheet.benchmarks.simulator.scenario import Mode, check_scenario
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.benchmarks.simulator.traces.trajectories import read_trace
from callsheet.benchmarks.simulator.validation import InputError
from callsheet.scheduler.core.words.model import ActionKind


def _trajectory(**changes: object) -> dict[str, object]:
    step = {"kind": "env_step", "label": "test", "duration_s": 2.0, "cpu_s": 1.0, "timeout_s": 120}
    return {
        "id": "one",
        "memory_mb": 200,
        "reset": {"label": "reset", "duration_s": 1.0, "cpu_s": 0.1},
        "turns": [{"generation": {"seconds": 3.0, "prompt_tokens": 100, "output_tokens": 10}, "actions": [step]}],
        "rewards": [
            {"label": "suite", "duration_s": 9.0, "cpu_s": 8.1, "parallel_fraction": 0.93, "max_width": 16},
        ],
    } | changes


def _write(path: Path, *trajectories: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(trajectory) + "\n" for trajectory in trajectories), encoding="utf-8")
    return path


def test_a_trajectory_is_read_as_it_was_written(tmp_path: Path) -> None:
    (rollout,) = read_trace(_write(tmp_path / "t.jsonl", _trajectory()))
    (turn,) = rollout.turns
    (step,) = turn.actions
    assert (rollout.name, rollout.task, rollout.memory_mb) == ("one", "one", 200)
    assert turn.generation.seconds == 3.0
    assert (step.kind, step.alone_s(), step.cpu_s, step.use, step.in_sandbox) == (
        ActionKind.ENV_STEP,
        2.0,
        1.0,
        0.5,
        True,
    )
    assert rollout.rewards[0].speed_up(16) == pytest.approx(1 / (0.07 + 0.93 / 16))
    assert not rollout.rewards[0].in_sandbox


def test_packed_files_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(json.dumps(_trajectory()) + "\n\n")
    assert len(read_trace(path)) == 1


def test_damaged_packed_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(_trajectory()).encode() * 100)[:-20])
    with pytest.raises(InputError, match=r"t\.jsonl\.gz: .*: must be UTF-8 text, packed by gzip"):
        read_trace(path)


def test_resampling_draws_by_the_seed(tmp_path: Path) -> None:
    recorded = [_trajectory(id=f"t{number}") for number in range(5)]
    path = _write(tmp_path / "t.jsonl", *recorded)
    once = traces.scenario(path, "coding", cores=4)
    assert [rollout.name for rollout in once.rollouts] == [f"t{number}#{number}" for number in range(5)]
    many = traces.scenario(path, "coding", trajectories=200, seed=1, cores=4)
    again = traces.scenario(path, "coding", trajectories=200, seed=1, cores=8)
    other = traces.scenario(path, "coding", trajectories=200, seed=2, cores=4)
    assert many.rollouts == again.rollouts != other.rollouts
    assert len({rollout.name for rollout in many.rollouts}) == 200
    assert set(Counter(rollout.task for rollout in many.rollouts)) == {f"t{number}" for number in range(5)}
    assert [job.name for job in many.jobs] == ["coding"]
    assert many.rollouts[0].rewards
    assert not traces.scenario(path, "coding", reward_mix="none").rollouts[0].rewards


def test_sustained_replay_lasts_to_the_horizon(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.jsonl", _trajectory(rewards=[]))
    scenario = traces.scenario(path, "coding", mode=Mode.SUSTAINED, trajectories=3, horizon_s=60.0)
    assert len(scenario.rollouts) == 3 * 60 // 6 + 3


@pytest.mark.parametrize(
    ("trajectory", "message"),
    [
        (_trajectory(turns=[]), r"t\.jsonl:1\.turns: \[\]: Tuple should have at least 1 item"),
        (_trajectory(memory_mb=-1), r"t\.jsonl:1\.memory_mb: -1: Input should be greater than or equal to 0"),
        (_trajectory(memory="big"), r"t\.jsonl:1\.memory: 'big': Unexpected keyword argument"),
        (_trajectory(reset={"label": "reset"}), r"t\.jsonl:1\.reset\.duration_s: None: Field required"),
        (
            _trajectory(rewards=[{"label": "suite", "duration_s": 1.0, "cpu_s": 2.0}]),
            r"t\.jsonl:1: suite: cpu_s: 2\.0: must be between 0 and 1",
        ),
        (
            _trajectory(turns=[{"generation": {}, "actions": [{"kind": "reward", "label": "suite", "duration_s": 1}]}]),
            r"turns\[0\]\.actions\[0\]\.kind: 'reward': Input should be 'env_step' or 'tool_call'",
        ),
        (_trajectory(turns=[{"generation": 3}]), r"turns\[0\]\.generation: 3: Input should be an object"),
        (_trajectory(arrives_s=10**400), r"t\.jsonl:1\.arrives_s: 10+: Input should be a finite number"),
    ],
)
def test_wrong_trajectories_are_refused(tmp_path: Path, trajectory: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(_write(tmp_path / "t.jsonl", trajectory))


def test_what_is_in_a_sandbox_needs_a_reset(tmp_path: Path) -> None:
    trajectory = _trajectory()
    del trajectory["reset"]
    with pytest.raises(ValueError, match=r"one#0\.env_step test\.in_sandbox: True; its trajectory must have a reset"):
        check_scenario(traces.scenario(_write(tmp_path / "t.jsonl", trajectory), "coding"))


def test_repeated_ids_and_unknown_services_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"t\.jsonl:2\.id: 'one': must differ"):
        read_trace(_write(tmp_path / "t.jsonl", _trajectory(), _trajectory()))
    call = {"label": "j", "duration_s": 1, "service": "jury"}
    path = _write(tmp_path / "t.jsonl", _trajectory(reset=None, turns=[{"generation": {}}], rewards=[call]))
    with pytest.raises(ValueError, match=r"one#0\.reward j\.service: 'jury'; must be a model of the cluster"):
        check_scenario(traces.scenario(path, "deepsearch"))


def test_recorded_trajectories_have_their_own_rewards(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.jsonl", _trajectory())
    with pytest.raises(InputError, match=r"reward_mix: 'full_suite': must be \"none\" or not given"):
        traces.scenario(path, "coding", reward_mix="full_suite")


@pytest.mark.parametrize(
    ("trajectory", "message"),
    [
        (_trajectory(arrives_s=1e300), r"one#0\.arrives: 1e\+300; must be between 0 and 100000000 s"),
        (_trajectory(turns=[{"generation": {"seconds": 1e9}}]), r"one#0: seconds of a generation: 1000000000\.0; must"),
        (
            _trajectory(reset={"label": "reset", "duration_s": 1e9, "cpu_s": 0.1}),
            r"one#0\.env_reset reset: seconds alone: 1000000000\.0; must be between",
        ),
        (
            _trajectory(reset={"label": "reset", "duration_s": 1, "cpu_s": 0.1, "fails": 101}),
            r"one#0\.env_reset reset\.fails: 101; must be at most 100",
        ),
    ],
)
def test_what_no_run_would_see_the_end_of_is_refused(
    tmp_path: Path, trajectory: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_scenario(traces.scenario(_write(tmp_path / "t.jsonl", trajectory), "coding"))


def test_the_longest_and_the_most_often_failing_trajectory_runs_to_its_end(tmp_path: Path) -> None:
    reset = {"label": "reset", "duration_s": 1.0, "cpu_s": 1.0, "fails": 100}
    long = _trajectory(reset=reset, turns=[{"generation": {"seconds": 1e8}}], arrives_s=1e8)
    scenario = traces.scenario(_write(tmp_path / "t.jsonl", long), "coding", cores=2)
    for policy in ("callsheet", "os_sharing"):
        assert simulate(scenario, POLICIES[policy]).step_s == pytest.approx(2e8, rel=1e-4)


def test_a_call_of_no_quota_is_replayed_under_every_policy(tmp_path: Path) -> None:
    call = {"kind": "tool_call", "label": "search", "duration_s": 5.0, "cpu_s": 0.0}
    recorded = _trajectory(turns=[{"generation": {"seconds": 1.0}, "actions": [call]}], rewards=[])
    scenario = traces.scenario(_write(tmp_path / "t.jsonl", recorded), "coding", cores=2)
    for policy in ("callsheet", "os_sharing"):
        assert simulate(scenario, POLICIES[policy]).step_s == pytest.approx(7.0, rel=0.01), policy


_LINE = json.dumps(_trajectory()) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a: '': must hold at least one trajectory"),
        ("\n \n", r"a: '': must hold at least one trajectory"),
        ("hello", r"a:1: 'hello': Invalid JSON"),
        ("\n\nhello", r"a:3: 'hello': Invalid JSON"),
        (_LINE + "\n{", r"a:3: '{': Invalid JSON"),
        (_LINE + "9" * 5000, r"a:2: '9+\.\.\.': Invalid JSON: number out of range"),
        (_LINE + "[" * 100_000, r"a:2: '\[+\.\.\.': Invalid JSON: recursion limit exceeded"),
    ],
)
def test_what_holds_no_trajectories_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_trace(path)
