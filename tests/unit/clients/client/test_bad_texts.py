"""Texts that no program, file or message can be given: refused before they are sent, as an outcome or by name."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from callsheet.client import (
    BadTextError,
    Command,
    CommandResult,
    ConversationText,
    EnvResetResult,
    EnvStep,
    Failed,
    FailureKind,
    InvalidArgumentError,
    Outcome,
    Reason,
    RewardResult,
    Succeeded,
    ToolCallResult,
    Trajectory,
)
from callsheet.client.errors import HALF, bad_text
from callsheet.client.testing import FakeClient
from callsheet.client.words.commands import culprits_of
from callsheet.integrations.borrowed_sandbox import BorrowedSandbox, BorrowedSandboxSettings
from callsheet.integrations.trl.reward import CallsheetReward
from callsheet.v1.names import MAX_COMMAND_BYTES

Act = Callable[[Trajectory], Awaitable[Outcome[Any]]]

_BAD: dict[str, Act] = {
    "a NUL for the shell": lambda of: of.env_step("a\0b"),
    "a NUL in a word": lambda of: of.env_step(["echo", "\0"]),
    "a NUL for Python": lambda of: of.env_step(Command.python("\0")),
    "half a pair": lambda of: of.env_step("echo \ud83d"),
    "half a pair in a word": lambda of: of.env_step(["\udc00"]),
    "nothing": lambda of: of.env_step(""),
    "no word": lambda of: of.env_step([]),
    "an empty program": lambda of: of.env_step(["", "x"]),
    "megabytes": lambda of: of.env_step("x" * (MAX_COMMAND_BYTES + 1)),
    "many words": lambda of: of.env_step(["x" * 1000] * 2000),
    "a directory above": lambda of: of.env_step(Command.shell("ls", working_directory="a/../..")),
    "a long directory": lambda of: of.env_step(Command.shell("ls", working_directory="d/" * 3000)),
    "a long component": lambda of: of.env_step(Command.shell("ls", working_directory="d" * 256)),
    "a NUL in a directory": lambda of: of.env_step(Command.shell("ls", working_directory="\0")),
    "an unnamed variable": lambda of: of.env_step(Command.shell("ls", environment={"": "x"})),
    "an odd variable": lambda of: of.env_step(Command.shell("ls", environment={"A=B": "x"})),
    "a variable's NUL": lambda of: of.env_step(Command.shell("ls", environment={"A": "\0"})),
    "a variable's half": lambda of: of.env_step(Command.shell("ls", environment={"A": "\ud800"})),
    "a file above": lambda of: of.env_step("ls", files={"../x": b""}),
    "a file without a name": lambda of: of.env_step("ls", files={"": b""}),
    "half a pair in a file": lambda of: of.env_step("ls", files={"x": "\ud83d"}),
    "half a pair as input": lambda of: of.env_step("ls", stdin="\ud83d"),
    "a download above": lambda of: of.env_step("ls", download=["a/../b"]),
    "many downloads": lambda of: of.env_step("ls", download=["a"] * 33),
    "an odd session": lambda of: of.env_step("ls", session="a b"),
    "an odd label": lambda of: of.env_step("ls", label="\ud83d"),
    "a method": lambda of: of.tool_call("api", "get\n"),
    "a test's word": lambda of: of.reward_tests(["check", "\0"]),
    "a solution": lambda of: of.reward_tests("check", files={"solution.py": "x = '\udfff'"}),
    "a script's word": lambda of: of.reward_script(["score", "{score}", "\ud800"]),
    "a judge's text": lambda of: of.judge("m", "r", ConversationText("p", "\ud83d")),
    "a judge's megabytes": lambda of: of.judge("m", "r", ConversationText("p", "x" * 1_100_000)),
    "a model's text": lambda of: of.reward_model(text=ConversationText("p", "\ud83d")),
}


@pytest.fixture
def fake() -> FakeClient:
    fake = FakeClient()
    fake.on_env_reset(lambda _: Succeeded(EnvResetResult("s")))
    fake.on_env_step(lambda _: Succeeded(CommandResult(0)))
    fake.on_tool_call(lambda _: Succeeded(ToolCallResult(b"")))
    for set_script in (fake.on_reward_tests, fake.on_reward_script, fake.on_reward_model, fake.on_judge):
        set_script(lambda _: Succeeded(RewardResult(1.0)))
    return fake


@pytest.mark.parametrize("act", _BAD.values(), ids=_BAD.keys())
async def test_a_bad_text_is_the_policys_outcome_and_is_never_sent(fake: FakeClient, act: Act) -> None:
    async with (await fake.open_job("job")).trajectory("t") as trajectory:
        outcome = await act(trajectory)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.reason) == (FailureKind.POLICY, Reason.BAD_COMMAND)
    assert outcome.message.isprintable()
    assert len(outcome.message) < 400
    assert fake.submitted == []


@pytest.mark.parametrize(
    "act",
    [
        lambda of: of.env_step(" \n"),
        lambda of: of.env_step("cat ../x"),
        lambda of: of.env_step(["echo", "", "\U0001f600"]),
        lambda of: of.env_step("x" * 100_000, stdin="\0"),
        lambda of: of.env_step(Command.shell("ls", working_directory="a/..b/c..", environment={"_A1": "\x1b\ufffe"})),
        lambda of: of.env_step("ls", files={"/etc/a b": "\0"}, session="a-b.c", download=["/x"]),
    ],
)
async def test_what_a_program_can_be_given_is_sent(fake: FakeClient, act: Act) -> None:
    async with (await fake.open_job("job")).trajectory("t") as trajectory:
        assert isinstance(await act(trajectory), Succeeded)


@pytest.mark.parametrize(
    "act",
    [
        lambda of: of.env_step(3),
        lambda of: of.env_step(["ls", 3]),
        lambda of: of.env_step(Command.shell("ls", environment=cast("dict[str, str]", {"A": 3}))),
        lambda of: of.env_step("ls", label=3),
        lambda of: of.env_step("ls", files=[3]),
        lambda of: of.env_step("ls", download=[3]),
        lambda of: of.env_step("ls", colour="red"),
        lambda of: of.env_reset(set_up="\0"),
        lambda of: of.env_reset(files={"../x": b""}),
        lambda of: of.submit(EnvStep("\0")),
    ],
)
async def test_a_wrong_type_and_a_bad_reset_are_raised_by_name(fake: FakeClient, act: Act) -> None:
    async with (await fake.open_job("job")).trajectory("t") as trajectory:
        with pytest.raises(InvalidArgumentError):
            await act(trajectory)


async def test_where_a_models_texts_are_noted_another_bad_text_is_raised(fake: FakeClient) -> None:
    async with (await fake.open_job("job")).trajectory("t") as trajectory:
        trajectory.heard = culprits_of("a reply with \\u0000")
        assert isinstance(await trajectory.env_step("\0"), Failed)
        assert isinstance(await trajectory.env_step(""), Failed)
        with pytest.raises(BadTextError, match="working_directory"):
            await trajectory.env_step(Command.shell("ls", working_directory=".."))


@pytest.mark.parametrize(
    ("text", "culprits"),
    [
        ("plain", {""}),
        ("\0", {"", "\0"}),
        ('{"a": "\\ud83d"}', {"", HALF}),
        ("\udfff ..", {"", HALF, ".."}),
        ("\U0001f600", {""}),
    ],
)
def test_a_text_has_the_signs_of_what_it_may_bring_about(text: str, culprits: set[str]) -> None:
    assert culprits_of(text) == culprits


def test_it_pickles() -> None:
    error = pickle.loads(pickle.dumps(bad_text("command", "\ud800", "must not", HALF)))
    assert (type(error), error.field, error.value) == (BadTextError, "command", "\ud800")


async def test_a_borrowed_sandbox_tells_of_it_as_a_program_would(fake: FakeClient) -> None:
    sandbox = BorrowedSandbox((await fake.open_job("job")).trajectory("t"), BorrowedSandboxSettings())
    for argv in (["sh", "-c", "\0"], ["\ud83d"], [""], ["sh", "-c", "x" * 3_000_000]):
        told = await sandbox.run(argv)
        assert (told.exit_code, "bad_command" in told.stderr) == (125, True)


async def test_a_reward_of_a_trainer_is_the_policys_zero(fake: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tests(job: Any, completion: str, row: object) -> Outcome[RewardResult]:
        outcome: Outcome[RewardResult] = await job.reward_tests("check", files={"solution.py": completion})
        return outcome

    async def handle(job: Any, completion: str, row: object) -> Outcome[RewardResult]:
        raise bad_text("a handle's", completion, "must not")

    for action in (tests, handle):
        rewards = CallsheetReward("127.0.0.1:1", action, job_id="j")
        monkeypatch.setattr(rewards, "client", fake)
        expected = [1.0, 0.0] if action is tests else [0.0, 0.0]
        assert await rewards(["p", "p"], ["x = 1", "\ud83d"]) == expected
