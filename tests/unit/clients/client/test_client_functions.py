"""Rewards that are functions: what is sent for them, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from callsheet.client import Failed, InvalidArgumentError, RewardResult, Succeeded, Where
from callsheet.client.testing import FakeClient
from callsheet.client.words.functions import function_script
from callsheet.v1 import action_pb2
from callsheet.v1.rewards import may_score_in_copy

from tests.support.function_runs import MODULE, run_function


@pytest.mark.parametrize(
    ("function", "arguments", "field"),
    [
        ("statistics.mean", {}, "function"),
        ("os:system;x", {}, "function"),
        ("a:b c", {}, "function"),
        ("", {}, "function"),
        (None, {}, "function"),
        ("a:b", {"x": object()}, "arguments"),
        ("a:b", {"x": {1, 2}}, "arguments"),
        ("a:b", 3, "arguments"),
    ],
)
def test_what_is_no_function_or_no_json_is_refused_here(
    function: str, arguments: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=field):
        function_script(function, arguments, "", "")


def test_arguments_travel_as_json_on_standard_input() -> None:
    script = function_script("a.b:c", {"x": [1, "é"]}, "graders:1", "")
    assert (script.where, script.image) == (Where.EMPTY, "graders:1")
    assert json.loads(script.command.stdin) == {"x": [1, "é"]}
    assert script.command.program[-2:] == ("a.b:c", "{score}")


def test_what_rows_of_trainers_hold_is_json() -> None:
    arguments = {"turns": np.int32(3), "ids": np.array([1, 2]), "nested": {"share": [np.float64(0.5)]}}
    script = function_script("a.b:c", arguments, "", "")
    assert json.loads(script.command.stdin) == {"turns": 3, "ids": [1, 2], "nested": {"share": [0.5]}}


@pytest.mark.parametrize(
    ("function", "arguments", "score", "components"),
    [
        ("given", {"value": True}, 1.0, {}),
        ("given", {"value": [0.5]}, 0.5, {}),
        ("given", {"value": "0.5"}, 0.5, {}),
        ("given", {"value": {"score": True, "pred": "x", "none": None, "parts": [1]}}, 1.0, {"score": 1.0}),
        ("given", {"value": [{"score": 2, "acc": 1}]}, 2.0, {"score": 2.0, "acc": 1.0}),
        ("number", {}, 0.25, {}),
        ("numbers", {}, 0.25, {"score": 0.25, "other": 0.25}),
        ("later", {"value": [3]}, 3.0, {}),
    ],
)
def test_scores_as_functions_of_trainers_return_them(
    function: str, arguments: dict[str, object], score: float, components: dict[str, float]
) -> None:
    found = run_function(function_script(f"{MODULE}:{function}", arguments, "", "")).unwrap()
    assert (found.score, found.components) == (score, components)


@pytest.mark.parametrize("value", [None, [], [None], [1, 2], {"acc": 1}, {"score": None, "acc": 1}, "good"])
def test_what_tells_no_score_is_none(value: object) -> None:
    assert isinstance(run_function(function_script(f"{MODULE}:given", {"value": value}, "", "")), Failed)


@pytest.mark.parametrize(
    ("where", "copies"),
    [
        (action_pb2.REWARD_PLACE_FRESH, True),
        (action_pb2.REWARD_PLACE_IN_SANDBOX, False),
        (action_pb2.REWARD_PLACE_EMPTY, False),
    ],
)
def test_an_empty_sandbox_copies_nothing(where: action_pb2.RewardPlace.ValueType, copies: bool) -> None:
    reward = action_pb2.RewardInput(script=action_pb2.ScriptScoreInput(where=where))
    assert may_score_in_copy(reward) is copies


@pytest.mark.anyio
async def test_its_label_is_the_function_unless_another_one_is_given() -> None:
    async with FakeClient() as client:
        client.on_reward_script(lambda call: Succeeded(RewardResult(1.0)))
        async with await client.open_job("j") as job:
            (await job.reward_function("a.b:c", {"x": 1})).unwrap()
            (await job.reward_function("a.b:c", {"x": 1}, label="mine")).unwrap()
        labels = [each.options.get("label") for each in client.submitted]
    assert labels == ["a.b:c", "mine"]
