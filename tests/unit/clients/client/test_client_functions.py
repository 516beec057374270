"""Rewards that are functions: what is sent for them, and what is refused."""

from __future__ import annotations

import json

import pytest
from callsheet.client import InvalidArgumentError, RewardResult, Succeeded, Where
from callsheet.client.testing import FakeClient
from callsheet.client.words.functions import function_script
from callsheet.v1 import action_pb2
from callsheet.v1.rewards import may_score_in_copy


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
