"""What a recording makes of real trajectories, and the simulator of that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from callsheet.benchmarks.recording import recorded_trajectory
from callsheet.benchmarks.simulator import traces
from callsheet.benchmarks.simulator.scenario import check_scenario
from callsheet.benchmarks.simulator.traces import recorded_acts
from callsheet.benchmarks.simulator.traces.trajectories import read_trace
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.v1 import action_pb2, admin_service_pb2, outcome_pb2

BEGAN = 1_700_000_000.0


def action(
    kind: str,
    submitted: float,
    ended: float,
    *,
    execution_s: float | None = None,
    cpu_s: float = 0.0,
    state: str = "SUCCEEDED",
    start_wait_s: float = 0.0,
    **fields: Any,
) -> admin_service_pb2.ActionHistory:
    """An action that was submitted and ended so many seconds after the recording's beginning."""
    message = admin_service_pb2.ActionHistory(
        kind=action_pb2.ActionKind.Value(f"ACTION_KIND_{kind}"),
        state=admin_service_pb2.ActionState.Value(f"ACTION_STATE_{state}"),
        usage=outcome_pb2.Usage(cpu_s=cpu_s),
        **{"attempts": 1, **fields},
    )
    timeline = message.timeline
    timeline.submitted.FromNanoseconds(round((BEGAN + submitted) * 1e9))
    timeline.ended.FromNanoseconds(round((BEGAN + ended) * 1e9))
    timeline.execution_s = ended - submitted if execution_s is None else execution_s
    timeline.start_wait_s = start_wait_s
    return message


def line(*actions: admin_service_pb2.ActionHistory, **fields: Any) -> dict[str, Any] | None:
    trajectory = admin_service_pb2.TrajectoryHistory(trajectory_id="t", **fields)
    return recorded_trajectory(trajectory, actions, "job", BEGAN)


def lengths(found: dict[str, Any] | None) -> list[tuple[float, list[str]]]:
    """Each turn's generation, and what follows it."""
    assert found is not None
    return [(turn["generation"]["seconds"], [each["label"] for each in turn["actions"]]) for turn in found["turns"]]


RESET = action("ENV_RESET", 1, 3, label="make", cpu_s=0.5)


def test_a_trajectory_is_told_as_it_was() -> None:
    spans = [outcome_pb2.PolicyVersionSpan(version=version, begin=0, end=5) for version in (3, 4)]
    generate = action("GENERATE", 3.5, 6, execution_s=2, output_tokens=10, cached_tokens=90, policy_versions=spans)
    generate.usage.cost.used["tokens_in"] = 10.0
    found = line(
        RESET,
        generate,
        action("ENV_STEP", 6.25, 8, execution_s=1.5, cpu_s=1.25, label="test", start_wait_s=0.0),
        action("REWARD", 8.5, 10, execution_s=1, cpu_s=0.75, label="suite", score=1.0),
        group_id="g",
        task="fix",
        policy_version=3,
    )
    assert found == {
        "id": "t",
        "job": "job",
        "group": "g",
        "task": "fix",
        "policy_version": 3,
        "arrives_s": 1.0,
        "reset": {"label": "make", "duration_s": 2.0, "cpu_s": 0.5, "act_s": 2.0},
        "turns": [
            {
                "generation": {
                    "seconds": 2.75,
                    "prompt_tokens": 100,
                    "output_tokens": 10,
                    "cached_tokens": 90,
                    "policy_versions": [[3, 5], [4, 5]],
                },
                "actions": [
                    {
                        "kind": "env_step",
                        "label": "test",
                        "duration_s": 1.5,
                        "cpu_s": 1.25,
                        "act_s": 1.75,
                    }
                ],
            },
            {
                "generation": {
                    "seconds": 0.5,
                    "prompt_tokens": 0,
                    "output_tokens": 0,
                    "cached_tokens": 0,
                    "policy_versions": [],
                },
                "actions": [],
            },
        ],
        "rewards": [{"label": "suite", "duration_s": 1.0, "cpu_s": 0.75, "act_s": 1.5}],
    }


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        pytest.param([RESET], [(0.0, [])], id="a reset alone"),
        pytest.param(
            [RESET, action("ENV_STEP", 4, 6, label="a"), action("ENV_STEP", 4.5, 5, label="b")],
            [(1.0, ["a", "b"])],
            id="side by side",
        ),
        pytest.param(
            [RESET, action("ENV_STEP", 4, 6, label="a"), action("ENV_STEP", 7, 8, label="b")],
            [(1.0, ["a"]), (1.0, ["b"])],
            id="one after the other, by a client with a model of its own",
        ),
        pytest.param(
            [
                RESET,
                action("ENV_STEP", 3, 6, label="a"),
                action("ENV_STEP", 5, 8, label="b"),
                action("ENV_STEP", 9, 10),
            ],
            [(0.0, ["a", "b"]), (1.0, ["env_step"])],
            id="overlapping, and without a label",
        ),
        pytest.param(
            [RESET, action("GENERATE", 3, 5), action("GENERATE", 5, 6), action("ENV_STEP", 6, 7, label="a")],
            [(3.0, ["a"])],
            id="a second try of the model",
        ),
        pytest.param(
            [RESET, action("ENV_STEP", 3, 4, label="a"), action("GENERATE", 4, 5)],
            [(0.0, ["a"]), (1.0, [])],
            id="a last word",
        ),
        pytest.param(
            [RESET, action("REWARD", 4, 5, label="r"), action("ENV_STEP", 6, 7, label="a")],
            [(1.0, ["r"]), (1.0, ["a"])],
            id="a reward of a turn",
        ),
        pytest.param(
            [RESET, action("ENV_STEP", 4, 5, label="a"), action("ENV_RESET", 6, 7, label="anew")],
            [(1.0, ["a"]), (1.0, ["anew"])],
            id="a second reset",
        ),
        pytest.param(
            [RESET, action("ENV_STEP", 4, 5, label="late", state="EXPIRED", execution_s=0.0)],
            [(0.0, [])],
            id="what never ran",
        ),
        pytest.param([action("TOOL_CALL", 4, 5, label="search")], [(0.0, ["search"])], id="no sandbox"),
    ],
)
def test_turns_follow_from_times(
    actions: list[admin_service_pb2.ActionHistory], expected: list[tuple[float, list[str]]]
) -> None:
    assert lengths(line(*actions)) == expected


def test_nothing_ran() -> None:
    assert line() is None
    assert line(action("ENV_RESET", 0, 1, state="CANCELLED", execution_s=0.0, attempts=0)) is None


@pytest.mark.parametrize(
    ("execution_s", "cpu_s", "expected"),
    [
        (2.0, 1.0, (2.0, 1.0, 1, 0.0)),
        (2.0, 2.1, (2.1, 2.1, 1, 0.0)),
        (2.0, 4.0, (4.0, 4.0, 2, 1.0)),
        (2.0, 5.0, (5.0, 5.0, 3, 0.9)),
    ],
)
def test_cpu_beyond_one_core_is_width(
    execution_s: float, cpu_s: float, expected: tuple[float, float, int, float]
) -> None:
    found = line(RESET, action("ENV_STEP", 3, 6, execution_s=execution_s, cpu_s=cpu_s))
    assert found is not None
    ((step,),) = (turn["actions"] for turn in found["turns"])
    told = (step["duration_s"], step["cpu_s"], step.get("max_width", 1), step.get("parallel_fraction", 0.0))
    assert told == expected


def test_what_is_recorded_can_be_replayed(tmp_path: Path) -> None:
    trajectories = [
        line(RESET, action("ENV_STEP", 4, 6, cpu_s=7.0, attempts=3), action("REWARD", 7, 8, cpu_s=0.9)),
        line(action("TOOL_CALL", 4, 5), action("REWARD", 6, 7), action("ENV_STEP", 8, 9, cpu_s=0.9)),
        line(action("GENERATE", 4, 5, output_tokens=3, state="CANCELLED")),
    ]
    assert all(trajectories)
    path = tmp_path / "t.jsonl"
    lines = [{**each, "id": f"t{number}"} for number, each in enumerate(trajectories) if each is not None]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    first, second, third = read_trace(path)
    (step,) = first.turns[0].actions
    assert (step.fails, step.max_width, step.in_sandbox) == (2, 4, True)
    assert step.alone_s(4) == pytest.approx(2.0)
    assert [(work.kind, work.in_sandbox) for work in second.works()] == [
        (ActionKind.TOOL_CALL, False),
        (ActionKind.ENV_STEP, False),
        (ActionKind.ENV_STEP, False),
    ]
    assert third.turns[0].actions == ()
    check_scenario(traces.scenario(path, "coding", cores=2))
    acts = recorded_acts(path)
    assert {kind: len(each) for kind, each in acts.items()} == {
        "env_reset": 1,
        "env_step": 3,
        "reward": 1,
        "tool_call": 1,
    }
    assert acts["env_reset"] == [2.0]
