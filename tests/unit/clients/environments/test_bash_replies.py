"""What replies want run: calls of tools, fenced blocks, and nothing at the end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from callsheet.client import (
    Cancelled,
    Command,
    CommandResult,
    EnvReset,
    EnvResetResult,
    EnvStep,
    Expired,
    Failed,
    FailureKind,
    Outcome,
    Reason,
    RewardResult,
    RewardTests,
    Succeeded,
)
from callsheet.client.testing import FakeClient
from callsheet.environments import EpisodeTask, Message
from callsheet.environments.bash_replies import (
    BadCall,
    CommandReport,
    SandboxCommand,
    bash_call,
    bash_wanted,
    call_message,
    read_report,
    report_of,
    report_text,
    submits,
)
from callsheet.environments.games.frozen_lake import FrozenLakeTasks, frozen_lake_world, moves_wanted, play
from callsheet.environments.sandbox_environment import SandboxEnvironment, program_label


def _said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def test_a_call_of_bash_is_a_command() -> None:
    (wanted,) = bash_wanted(call_message("bash", {"command": "ls -l", "timeout_s": 5}, "c1"))
    assert wanted == SandboxCommand(Command.shell("ls -l"), 5.0, "c1")


def test_fenced_blocks_are_commands_without_calls() -> None:
    wanted = bash_wanted(_said("First:\n```bash\nls\n```\nthen\n```sh\npwd\n```\n```python\nprint()\n```"))
    assert [each.command.program for each in wanted if isinstance(each, SandboxCommand)] == ["ls", "pwd"]


@pytest.mark.parametrize("reply", [_said("I am done."), _said(""), call_message("submit", {}, "c1"), {}])
def test_a_reply_without_a_command_wants_nothing(reply: Message) -> None:
    assert bash_wanted(reply) == []


def test_a_submit_behind_a_command_ends_the_list() -> None:
    first, last = call_message("bash", {"command": "ls"}, "c1"), call_message("submit", {}, "c2")
    reply = {**first, "tool_calls": [*first["tool_calls"], *last["tool_calls"]]}
    assert len(bash_wanted(reply)) == 1
    assert submits(reply)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("grep", {"command": "x"}, "no tool 'grep'"),
        ("bash", {}, "command"),
        ("bash", {"command": " "}, "command"),
        ("bash", {"command": [1]}, "command"),
        ("bash", {"command": "ls", "timeout_s": -1}, "timeout_s"),
        ("bash", {"command": "ls", "timeout_s": True}, "timeout_s"),
        ("bash", {"command": "ls", "working_directory": 3}, "working_directory"),
    ],
)
def test_a_call_that_cannot_be_carried_out_is_told(name: str, arguments: dict[str, Any], said: str) -> None:
    (wanted,) = bash_wanted(call_message(name, arguments, "c1"))
    assert isinstance(wanted, BadCall)
    assert said in wanted.said


def test_arguments_that_are_no_json_are_told() -> None:
    call = {"id": "c1", "function": {"name": "bash", "arguments": '{"command": '}}
    assert isinstance(bash_wanted({"role": "assistant", "tool_calls": [call]})[0], BadCall)


def test_a_policy_in_code_says_a_program_with_its_variables() -> None:
    command = Command.argv("python3", "-c", "pass", environment={"A": "b"}, working_directory="there")
    reply = bash_call(command, 3.0, "c1")
    assert json.loads(reply["tool_calls"][0]["function"]["arguments"])["command"] == ["python3", "-c", "pass"]
    assert bash_wanted(reply) == [SandboxCommand(command, 3.0, "c1")]


@pytest.mark.parametrize(
    "report", [CommandReport(0, ""), CommandReport(1, "no newline"), CommandReport(None, "two\nlines\n")]
)
def test_a_report_is_read_as_it_was_written(report: CommandReport) -> None:
    assert read_report(report_text(report)) == report


def test_a_long_output_keeps_its_ends() -> None:
    text = report_text(CommandReport(0, "a" * 20_000 + "b" * 20_000))
    assert len(text) < 17_000
    assert text.startswith("aaa")
    assert "24000 characters" in text
    assert read_report(text).exit_code == 0


@pytest.mark.parametrize(
    ("outcome", "report"),
    [
        (Succeeded(CommandResult(3, b"out", b"err")), CommandReport(3, "outerr")),
        (Succeeded(CommandResult(-9, signal=9)), CommandReport(-9, "")),
        (Failed(FailureKind.TIMEOUT, Reason.START_TO_CLOSE, "too long"), CommandReport(None, "timeout: too long\n")),
        (
            Failed(FailureKind.TIMEOUT, Reason.START_TO_CLOSE, "too long", CommandResult(0, b"so far\n")),
            CommandReport(None, "so far\ntimeout: too long\n"),
        ),
        (Failed(FailureKind.INFRA, Reason.STATE_LOST), None),
        (Cancelled(), None),
        (Expired(), None),
    ],
)
def test_a_commands_failure_is_something_to_learn_from(
    outcome: Outcome[CommandResult], report: CommandReport | None
) -> None:
    assert report_of(outcome) == report


def test_labels_are_names_of_programs() -> None:
    assert program_label(Command.shell("/usr/bin/grep -r x")) == "grep"
    assert program_label(Command.argv("pytest", "-q")) == "pytest"
    assert program_label(Command.shell("  ")) == ""


@pytest.mark.parametrize(
    ("reply", "request_"),
    [
        (call_message("move", {"direction": "up"}, "c1"), "up"),
        (_said("I could go left. No: DOWN."), "down"),
    ],
)
def test_a_move_is_called_or_said(reply: Message, request_: str) -> None:
    (wanted,) = moves_wanted(reply)
    assert isinstance(wanted, SandboxCommand)
    assert wanted.command == play(request_)


@pytest.mark.parametrize("reply", [_said("I wait."), call_message("move", {}, "c1")])
def test_what_is_no_move_is_told(reply: Message) -> None:
    assert isinstance(moves_wanted(reply)[0], BadCall)


def test_games_are_drawn_by_a_seed() -> None:
    tasks = FrozenLakeTasks(count=3, seed=1).tasks()
    assert tasks == FrozenLakeTasks(count=3, seed=1).tasks() != FrozenLakeTasks(count=3, seed=2).tasks()
    assert isinstance(FrozenLakeTasks().environment(EpisodeTask("t", tasks[0].data)), SandboxEnvironment)


async def test_a_game_is_played_until_it_is_over() -> None:
    fake = FakeClient()
    fake.on_env_reset(lambda _: Succeeded(EnvResetResult("s", CommandResult(0, b"playing\n"))))
    fake.on_env_step(lambda _: Succeeded(CommandResult(0, b"won\nsteps 1\n")))
    fake.on_reward_tests(lambda _: Succeeded(RewardResult(1.0)))
    environment = SandboxEnvironment(frozen_lake_world(3, image="python"))
    async with (await fake.open_job("job")).trajectory("t") as trajectory:
        beginning = await environment.reset(trajectory)
        assert beginning.messages[-1]["content"] == "playing\n"
        assert not (await environment.step(trajectory, _said("I wait."))).done
        observation = await environment.step(trajectory, _said("right"))
        assert (observation.done, observation.messages[0]["role"]) == (True, "user")
        assert (await environment.reward(trajectory)).value == 1.0
    assert [type(each.action) for each in fake.submitted] == [EnvReset, EnvStep, RewardTests]
    (reset,) = (each.action for each in fake.submitted if isinstance(each.action, EnvReset))
    assert reset.image == "python"


async def test_a_command_with_hardly_any_time_left_does_not_take_the_default() -> None:
    fake = FakeClient()
    fake.on_env_step(lambda _: Succeeded(CommandResult(0)))
    world = replace(frozen_lake_world(3), wanted=lambda _: [SandboxCommand(Command.shell("true"), 1e-12)])
    async with (await fake.open_job("job")).trajectory("t") as trajectory:
        await SandboxEnvironment(world).step(trajectory, _said("go"))
    timeouts = fake.submitted[0].options["timeouts"]
    assert timeouts is not None
    assert timeouts.start_to_close_s == 0.001
