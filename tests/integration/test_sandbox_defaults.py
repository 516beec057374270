"""Defaults of a sandbox's commands, and rewards by scripts, with real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.managers.executor import Broken, Completed
from callsheet.managers.sandbox.agent_client.command_defaults import own_user
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import action_pb2
from callsheet.v1.set_ups import set_up_name
from google.protobuf import duration_pb2

from tests.support.executor_runs import completed, failure, make
from tests.support.expected import expect
from tests.support.sandbox_attempts import attempt_of, inline_file, reset, sh, step, suite
from tests.support.sandboxes import Variant, settings_for, variants

pytestmark = pytest.mark.anyio

IN_SANDBOX, FRESH = action_pb2.REWARD_PLACE_IN_SANDBOX, action_pb2.REWARD_PLACE_FRESH


@pytest.fixture(params=variants(*Isolation, others_by_night=True), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    variant: Variant = request.param
    return settings_for(variant, tmp_path)


async def printed(executor: SandboxExecutor, action: action_pb2.ActionSpec, sandbox_id: str) -> str:
    return (await completed(executor, action, sandbox_id=sandbox_id)).env_step.stdout.inline.decode()


def with_defaults(action: action_pb2.ActionSpec, **values: object) -> action_pb2.ActionSpec:
    action.env_reset.defaults.CopyFrom(action_pb2.CommandDefaults(**values))  # type: ignore[arg-type]
    return action


def script(command: str, **values: object) -> action_pb2.ActionSpec:
    scorer = action_pb2.ScriptScoreInput(command=sh(command), **values)  # type: ignore[arg-type]
    return action_pb2.ActionSpec(trajectory_id="trajectory", reward=action_pb2.RewardInput(script=scorer))


async def test_all_commands_of_a_sandbox_take_its_defaults(executor: SandboxExecutor) -> None:
    given = reset(inline_file("given", b"given "), set_up="cat given > made; echo $A >> made")
    defaults = {"environment": {"A": "1", "B": "2"}, "working_directory": "deep/place", "max_output_bytes": 40}
    sandbox_id = await make(executor, with_defaults(given, **defaults))
    assert await printed(executor, step("cat made; basename $PWD; echo $A"), sandbox_id) == "given 1\nplace\n1\n"
    own = step("echo $A $B; pwd", inline_file("own", b"x"))
    own.env_step.command.environment["A"] = "own"
    own.env_step.command.working_directory = ".."
    assert failure(await executor.run(attempt_of(own, sandbox_id=sandbox_id))) == ("ENV", "bad_path")
    own.env_step.command.working_directory = ""
    assert (await printed(executor, own, sandbox_id)).startswith("own 2\n")
    in_session = step("test -e own && echo $A && basename $PWD")
    in_session.env_step.session = "main"
    assert await printed(executor, in_session, sandbox_id) == "1\nplace\n"
    long = await completed(executor, step("seq 1000"), sandbox_id=sandbox_id)
    assert long.env_step.stdout_dropped_bytes > 0
    rewarded = suite("test -e own && test $A = 1", in_sandbox=True)
    assert (await completed(executor, rewarded, sandbox_id=sandbox_id)).reward.score == 1.0


async def test_files_are_relative_to_the_default_directory(executor: SandboxExecutor) -> None:
    sandbox_id = await make(executor, with_defaults(reset(), working_directory="place"))
    action = step("cat file; echo out > made", inline_file("file", b"content"))
    action.env_step.download.append("made")
    result = await completed(executor, action, sandbox_id=sandbox_id)
    assert result.env_step.stdout.inline == b"content"
    assert result.env_step.downloads[0].content.inline == b"out\n"


async def test_a_sandbox_knows_its_own_user_only(executor: SandboxExecutor, settings: SandboxSettings) -> None:
    for user in own_user(settings.isolation):
        await make(executor, with_defaults(reset(), user=user))
    refused = await executor.run(attempt_of(with_defaults(reset(), user="postgres"), resources={"memory": 256}))
    assert failure(refused) == ("ENV", "user_refused")
    assert isinstance(refused, Broken)
    assert "one user" in refused.failed.message


async def test_a_bad_default_is_the_environments_fault(executor: SandboxExecutor) -> None:
    for values, reason in (
        ({"environment": {"a b": "c"}}, "bad_environment"),
        ({"working_directory": ".."}, "bad_path"),
    ):
        refused = await executor.run(attempt_of(with_defaults(reset(), **values), resources={"memory": 256}))
        assert failure(refused) == ("ENV", reason)


def test_defaults_are_part_of_what_a_set_up_is_known_by() -> None:
    plain = reset(set_up="true").env_reset
    names = {
        set_up_name(with_defaults(reset(set_up="true"), **values).env_reset)
        for values in ({"environment": {"A": "1"}}, {"working_directory": "/x"}, {"user": "root"})
    }
    assert len(names | {set_up_name(plain)}) == 4
    timed = with_defaults(reset(set_up="true"), user="root", start_to_close=duration_pb2.Duration(seconds=5))
    assert set_up_name(timed.env_reset) in names


async def test_a_script_tells_its_score(executor: SandboxExecutor) -> None:
    fresh = script("cat given > {score}", files=[inline_file("given", b'{"score": 0.5, "style": 1}')], where=FRESH)
    result = expect(Completed, await executor.run(attempt_of(fresh)))
    assert result.succeeded.reward.score == 0.5
    assert dict(result.succeeded.reward.components) == {"score": 0.5, "style": 1.0}
    sandbox_id = await make(executor, reset(set_up="echo 0.75 > own"))
    inside = script("cat own > out/score", files=[inline_file("out/x", b"")], score_file="out/score", where=IN_SANDBOX)
    result = expect(Completed, await executor.run(attempt_of(inside, sandbox_id=sandbox_id)))
    assert result.succeeded.reward.score == 0.75


async def test_an_old_score_is_no_score(executor: SandboxExecutor) -> None:
    sandbox_id = await make(executor, reset(set_up="echo 1 > score"))
    result = await executor.run(
        attempt_of(script("echo said", score_file="score", where=IN_SANDBOX), sandbox_id=sandbox_id)
    )
    assert failure(result) == ("ENV", "score_missing")
    assert isinstance(result, Broken)
    assert result.failed.partial.reward.command.stdout.inline == b"said\n"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo 1 > {score}; exit 3", "script_failed"),
        ("true {score}", "score_missing"),
        ("ln -s /etc/hostname {score}", "score_malformed"),
        ("echo nan > {score}", "score_malformed"),
        ("seq 100000 > {score}", "score_malformed"),
    ],
)
async def test_a_script_without_a_score_is_no_zero(executor: SandboxExecutor, command: str, reason: str) -> None:
    assert failure(await executor.run(attempt_of(script(command, where=FRESH)))) == ("ENV", reason)


async def test_the_place_of_a_suite_is_told_by_its_enum(executor: SandboxExecutor) -> None:
    sandbox_id = await make(executor, reset(set_up="touch own"))
    # What a copy loses its original has, and a sandbox of nobody is empty.
    places = ((FRESH, sandbox_id, 1.0), (IN_SANDBOX, sandbox_id, 1.0), (FRESH, sandbox_id, 0.0), (FRESH, "", 0.0))
    for where, of_sandbox, score in places:
        action = suite("test -e own && rm own")
        action.reward.test_suite.where = where
        assert (await completed(executor, action, sandbox_id=of_sandbox)).reward.score == score
