"""Mistakes in arguments: each names the argument, its value and the rule."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import callsheet.client
import pytest
from callsheet.client import (
    BackgroundProcesses,
    Client,
    ClientOptions,
    CommandDefaults,
    CommandResult,
    EnvStep,
    InvalidArgumentError,
    Job,
    OnInfra,
    Opening,
    RefusalCode,
    RewardResult,
    Sampling,
    SandboxFile,
    Staleness,
    Succeeded,
    Tls,
    Where,
)
from callsheet.client.testing import FakeClient

_names: Any = callsheet.client  # mypy would refuse the mistakes
Mistake = Callable[[Any], Awaitable[object]]

_ON_A_TRAJECTORY: list[tuple[str, Mistake]] = [
    ("command", lambda t: t.env_step(5)),
    ("command[1]", lambda t: t.env_step(["ls", 1])),
    ("command", lambda t: t.env_step(None)),
    ("set_up", lambda t: t.env_reset(set_up=5)),
    ("env_reset.files", lambda t: t.env_reset(files="x")),
    ("env_reset.files[0]", lambda t: t.env_reset(files=["x"])),
    ("env_reset.files", lambda t: t.env_reset(files=3)),
    ("env_reset.defaults", lambda t: t.env_reset(defaults={"user": "me"})),
    ("env_reset.defaults.environment", lambda t: t.env_reset(defaults=CommandDefaults(environment=["A"]))),  # type: ignore[arg-type]
    ("env_reset.defaults.start_to_close", lambda t: t.env_reset(defaults=CommandDefaults(start_to_close_s="1"))),  # type: ignore[arg-type]
    ("env_reset.network", lambda t: t.env_reset(network="index.example:443")),
    ("env_reset.disk_mib", lambda t: t.env_reset(disk_mib="big")),
    ("env_reset.image", lambda t: t.env_reset(image=3)),
    ("env_step.session", lambda t: t.env_step("ls", session=3)),
    ("env_step.download", lambda t: t.env_step("ls", download="a")),
    ("demand", lambda t: t.env_step("ls", demand=2)),
    ("timeouts", lambda t: t.env_step("ls", timeouts=5)),
    ("retry", lambda t: t.env_step("ls", retry=3)),
    ("weight", lambda t: t.env_step("ls", weight="2")),
    ("unservable", lambda t: t.env_step("ls", unservable="wait")),
    ("label", lambda t: t.env_step("ls", label=3)),
    ("action_id", lambda t: t.env_step("ls", action_id=7)),
    ("action_id", lambda t: t.env_step("ls", action_id="")),
    ("expected_duration", lambda t: t.env_step("ls", expected_duration_s="1 s")),
    ("lable", lambda t: t.env_step("ls", lable="x")),
    ("temperature", lambda t: t.generate([1], temperature=0.5)),
    ("generate.sampling", lambda t: t.generate([1], {"temperature": 1})),
    ("generate.sampling.max_new_tokens", lambda t: t.generate([1], Sampling(max_new_tokens=0))),
    ("generate.sampling.stop", lambda t: t.generate([1], Sampling(stop="end"))),
    ("generate.sampling.log_probs_mode", lambda t: t.generate([1], Sampling(log_probs_mode="raw"))),  # type: ignore[arg-type]
    ("generate.prompt_token_ids[0]", lambda t: t.generate("abc")),
    ("service", lambda t: t.generate([1], model=3)),
    ("tool_call.arguments", lambda t: t.tool_call("api", "get", "text")),
    ("tool_call.idempotent", lambda t: t.tool_call("api", "get", idempotent="yes")),
    ("reward.script.where", lambda t: t.reward_script("score", where="fresh")),
    ("reward.script.score_file", lambda t: t.reward_script("score", where=Where.IN_SANDBOX)),
    ("reward.test_suite.background", lambda t: t.reward_tests("t", where=Where.IN_SANDBOX, background="stop")),
    ("reward.test_suite.background", lambda t: t.reward_tests("t", image="x", background=BackgroundProcesses.STOP)),
    ("reward.script.score_file", lambda t: t.reward_script("to {score}", where=Where.IN_SANDBOX, score_file="score")),
    ("in_sandbox", lambda t: t.reward_tests("pytest", in_sandbox=True)),
    ("action", lambda t: t.submit("ls")),
    ("end", lambda t: t.close("completed")),
    ("reason", lambda t: t.cancel(5)),
]
_ON_A_JOB: list[tuple[str, Mistake]] = [
    ("trajectory_id", lambda j: j.reward_tests("pytest", where=Where.IN_SANDBOX)),
    ("reward.test_suite.files", lambda j: j.reward_tests("pytest")),
    ("reward.script.files", lambda j: j.reward_script("score {score}")),
    ("version", lambda j: j.publish("3")),
    ("reason", lambda j: j.cancel(5)),
    ("trajectory_id", lambda j: j.trajectory(5).open()),
    ("trajectory_id", lambda j: j.trajectory("x" * 257).open()),
    ("idle_timeout", lambda j: j.trajectory("u", idle_timeout_s="1").open()),
    ("deadline", lambda j: j.trajectory("u", deadline_s=-1).open()),
]
_ON_A_CLIENT: list[tuple[str, Mistake]] = [
    ("job_id", lambda c: c.open_job(5)),
    ("job_id", lambda c: c.open_job("")),
    ("share", lambda c: c.open_job("k", share="2")),
    ("priority_class", lambda c: c.open_job("k", priority_class="eval")),
    ("staleness", lambda c: c.open_job("k", staleness=2)),
    ("staleness.max_versions", lambda c: c.open_job("k", staleness=Staleness(0))),
    ("grace", lambda c: c.open_job("k", grace_s="1 h")),
    ("detached", lambda c: c.open_job("k", detached="yes")),
    ("max_actions", lambda c: c.open_job("k", max_actions=0)),
]


@pytest.fixture
async def job() -> Job:
    fake = FakeClient()
    fake.on_env_step(lambda step: Succeeded(CommandResult(0, str(step.command.program).encode())))
    fake.on_reward_script(lambda action: Succeeded(RewardResult(0.5, components={"style": 0.5})))
    return await fake.open_job("job")


async def _told(field: str, call: Awaitable[object]) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        await call
    error = caught.value
    assert (error.code, error.field) == (RefusalCode.INVALID_ARGUMENT, field)
    assert error.rule
    return error.rule


async def _later(call: Callable[[], Awaitable[object]]) -> object:
    return await call()


@pytest.mark.parametrize(("field", "mistake"), _ON_A_TRAJECTORY)
async def test_mistakes_on_a_trajectory(job: Job, field: str, mistake: Mistake) -> None:
    async with job.trajectory("t") as trajectory:
        await _told(field, _later(lambda: mistake(trajectory)))


@pytest.mark.parametrize(("field", "mistake"), _ON_A_JOB)
async def test_mistakes_on_a_job(job: Job, field: str, mistake: Mistake) -> None:
    await _told(field, _later(lambda: mistake(job)))


@pytest.mark.parametrize(("field", "mistake"), _ON_A_CLIENT)
async def test_mistakes_on_a_client(field: str, mistake: Mistake) -> None:
    await _told(field, _later(lambda: mistake(FakeClient())))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"group_id": 5, "size": 2}, "group.group_id"),
        ({"group_id": "g", "size": 0}, "group.size"),
        ({"group_id": "g", "size": "2"}, "group.size"),
        ({"group_id": "g", "size": 2, "quorum": 3}, "group.quorum"),
        ({"group_id": "g", "size": 2, "on_infra": "replace"}, "group.on_infra"),
        ({"group_id": "g", "size": 2, "max_replacements": -1}, "max_replacements"),
    ],
)
async def test_mistakes_in_a_group(job: Job, given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        job.group(**given)
    assert caught.value.field == field


_IN_VALUES: list[tuple[str, Callable[[Any], object]]] = [
    ("demand.cpu.min_units", lambda c: c.Demand(cpu="x")),
    ("demand.cpu.min_units", lambda c: c.Demand(cpu=None)),
    ("demand.cpu.min_units", lambda c: c.Demand(cpu=True)),
    ("demand[0]", lambda c: c.Demand(5)),
    ("demand[1]", lambda c: c.Demand(c.Resource("memory", 1), "cpu")),
    ("demand.resource", lambda c: c.Resource(5, "a")),
    ("demand.cpu.min_units", lambda c: c.Resource("cpu", "a")),
    ("demand.cpu.hold", lambda c: c.Resource("cpu", 1, hold="x")),
    ("demand.cpu.speed_up", lambda c: c.Resource("cpu", 1, speed_up=5)),
    ("demand.cpu.speed_up", lambda c: c.Resource("cpu", 1, speed_up=(1, 2))),
    ("demand.cpu.speed_up", lambda c: c.Resource("cpu", 1, speed_up=((1, "x"),))),
    ("elastic.min_units", lambda c: c.Elastic("a", 2)),
    ("elastic.max_units", lambda c: c.Elastic(1, None)),
    ("demand.cpu.max_units", lambda c: c.Demand(cpu=c.Elastic(2, 1))),
    ("demand.cpu.amdahl_fraction", lambda c: c.Demand(cpu=c.Elastic(1, 2, amdahl_fraction="a"))),
    ("demand.cpu.speed_up", lambda c: c.Demand(cpu=c.Elastic(1, 2, speed_up=5))),
    ("demand.cpu.speed_up", lambda c: c.Demand(cpu=c.Elastic(1, 2, speed_up={"a": 1}))),
    ("demand.cpu.hold", lambda c: c.Demand(cpu=c.Elastic(1, 2, hold="x"))),
    ("script", lambda c: c.Command.shell(5)),
    ("code", lambda c: c.Command.python(None)),
]


@pytest.mark.parametrize(("field", "mistake"), _IN_VALUES)
def test_mistakes_in_values(field: str, mistake: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        mistake(_names)
    assert caught.value.field == field
    assert caught.value.rule


@pytest.mark.parametrize(
    "mistake",
    [
        lambda job: job.group("g", size=2, bogus=1),
        lambda job: job.trajectory("t", bogus=1),
        lambda job: job.client.open_job("k", bogus=1),
        lambda job: _names.Sampling(bogus=1),
        lambda job: _names.Timeouts(bogus=5),
        lambda job: _names.Retry(bogus=5),
        lambda job: _names.Command.shell("ls", bogus=5),
    ],
)
async def test_an_unknown_word_of_a_constructor_is_named(job: Job, mistake: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="bogus"):
        mistake(job)


async def test_a_budget_for_lost_members_is_checked(job: Job) -> None:
    for on_infra in OnInfra:
        with pytest.raises(InvalidArgumentError, match="infra_budget"):
            job.group("g", size=2, on_infra=on_infra, infra_budget=-1)


def test_a_token_is_shown_nowhere() -> None:
    options = ClientOptions(token="secret")
    assert "secret" not in repr(options) + repr(Client("127.0.0.1:7077", options)) + repr(options.credentials)


async def test_an_unknown_word_names_what_was_meant(job: Job) -> None:
    async with job.trajectory("t") as trajectory:
        verb: Any = trajectory.env_step
        assert "label" in await _told("lable", verb("ls", lable="x"))
        assert "download" in await _told("downloads", verb("ls", downloads=["x"]))
        sample: Any = trajectory.generate
        assert "Sampling(temperature=...)" in await _told("temperature", sample([1], temperature=1.0))


async def test_commands_as_people_type_them(job: Job) -> None:
    async with job.trajectory("t") as trajectory:
        assert (await trajectory.env_step("ls | wc")).unwrap().stdout == b"ls | wc"
        assert (await trajectory.env_step(["ls", "-l"])).unwrap().stdout == b"('ls', '-l')"
        scored = await trajectory.reward_script("score", files=[SandboxFile("a", b"")], score_file="score.json")
        assert scored.unwrap().components == {"style": 0.5}
        handle = await trajectory.submit(EnvStep("ls"))
        assert not handle.done
        assert (await handle).unwrap().exit_code == 0
        assert handle.done
    assert job.opening is Opening.CREATED


@pytest.mark.parametrize(
    "target",
    [
        *("", "localhost", ":7077", "localhost:", "localhost:x", "localhost:0", "localhost:99999"),
        *("http://localhost:7077", "::1:7077", "a b:1", "dns:///host", "unix:", 5, None),
    ],
)
def test_a_wrong_address_is_refused(target: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Client(target)
    assert caught.value.field == "target"


@pytest.mark.parametrize(
    "target", ["localhost:1", "[::1]:7077", "dns:///host:7077", "unix:/run/callsheet", "10.0.0.1:65535"]
)
def test_addresses(target: str) -> None:
    assert Client(target).target == target


def test_the_environment_says_where_the_scheduler_is(tmp_path: Any) -> None:
    assert Client.from_env({}).target == "127.0.0.1:7077"
    assert Client.from_env({"CALLSHEET_SCHEDULER": "host:1"}).target == "host:1"
    named = Client.from_env({"CALLSHEET_SCHEDULER": "host:1", "CALLSHEET_TOKEN": "secret"}, target="other:2")
    assert (named.target, named.options.token) == ("other:2", "secret")
    token = tmp_path / "token"
    token.write_text("secret\n")
    for environ in ({"CALLSHEET_TOKEN": "secret"}, {"CALLSHEET_TOKEN_FILE": str(token)}):
        assert Client.from_env(environ).options.token == "secret"
    assert Client.from_env({"CALLSHEET_TLS_CA": "ca.pem"}).options.tls == Tls("ca.pem")
    assert Client.from_env({"CALLSHEET_TLS_CA": "system"}).options.tls == Tls()
    with pytest.raises(InvalidArgumentError, match="CALLSHEET_TOKEN_FILE"):
        Client.from_env({"CALLSHEET_TOKEN_FILE": str(tmp_path / "none")})
