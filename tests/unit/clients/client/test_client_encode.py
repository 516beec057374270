"""From values to messages."""

from __future__ import annotations

import hashlib
import math
from typing import Any, cast

import pytest
from callsheet.client import (
    Action,
    ActionOptions,
    BackgroundProcesses,
    Command,
    Demand,
    Elastic,
    EnvReset,
    EnvStep,
    Generate,
    GroupDescription,
    Hold,
    InvalidArgumentError,
    JobDescription,
    LogProbsMode,
    Resource,
    Retry,
    RewardModel,
    RewardScript,
    RewardTests,
    Sampling,
    SandboxFile,
    Staleness,
    Timeouts,
    ToolCall,
    TrajectoryDescription,
    Unservable,
    Where,
)
from callsheet.client.codec.actions import encode_submission
from callsheet.client.codec.fields import MAX_INLINE_BYTES, MAX_INLINE_TOTAL_BYTES, duration
from callsheet.client.codec.jobs import encode_job, encode_trajectory
from callsheet.client.words.actions import Submission
from callsheet.v1 import action_pb2


def _encode(action: Action[Any], **options: Any) -> tuple[action_pb2.ActionSpec, dict[str, bytes]]:
    return encode_submission(Submission("job", "t", "a", action, cast("ActionOptions", options)))


def test_a_generate_action() -> None:
    spec, uploads = _encode(Generate([1, 2], Sampling(5, 0.5, 0.9, 10, 7, ("end",), (3,), LogProbsMode.RAW), "tiny"))
    assert (spec.job_id, spec.trajectory_id, spec.action_id, spec.service) == ("job", "t", "a", "tiny")
    assert list(spec.generate.prompt_token_ids) == [1, 2]
    sampling = spec.generate.sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_k, sampling.seed) == (5, 0.5, 10, 7)
    assert (list(sampling.stop), list(sampling.stop_token_ids)) == (["end"], [3])
    assert sampling.log_probs_mode == action_pb2.LOG_PROBS_MODE_RAW
    assert uploads == {}


def test_an_env_reset_action() -> None:
    files = (SandboxFile("a.py", b"a", mode=0o755), SandboxFile(".", b"tar", unpack=True))
    spec, _ = _encode(
        EnvReset(
            files,
            Command.argv("sh", environment={"A": "b"}),
            disk_mib=64,
            max_processes=32,
            image="debian",
            repeat_set_up=True,
            memory="guaranteed",
        )
    )
    assert [(f.path, f.content.inline, f.unpack, f.mode) for f in spec.env_reset.files] == [
        ("a.py", b"a", False, 0o755),
        (".", b"tar", True, 0),
    ]
    assert spec.env_reset.set_up.argv.arguments == ["sh"]
    assert dict(spec.env_reset.set_up.environment) == {"A": "b"}
    assert (spec.env_reset.disk_mib, spec.env_reset.max_processes) == (64, 32)
    assert (spec.env_reset.image, spec.env_reset.repeat_set_up) == ("debian", True)
    assert spec.env_reset.guaranteed_memory


@pytest.mark.parametrize(
    ("action", "payload"),
    [
        (EnvReset(), "env_reset"),
        (EnvStep(Command.shell("true")), "env_step"),
        (ToolCall("api", "get"), "tool_call"),
        (RewardModel([1]), "reward"),
        (RewardTests("t", where=Where.IN_SANDBOX), "reward"),
        (RewardScript("{score}", image="debian"), "reward"),
        (Generate([1]), "generate"),
    ],
)
def test_the_payload_is_set_even_where_all_is_default(action: Action[Any], payload: str) -> None:
    spec, _ = _encode(action)
    assert spec.WhichOneof("payload") == payload


def test_a_shell_command_and_its_input() -> None:
    spec, _ = _encode(EnvStep(Command.shell("cat", working_directory="d", stdin=b"x", max_output_bytes=9)))
    command = spec.env_step.command
    assert (command.shell, command.working_directory, command.stdin.inline) == ("cat", "d", b"x")
    assert command.max_output_bytes == 9


def test_a_test_suite_in_the_sandbox() -> None:
    spec, _ = _encode(RewardTests(["pytest", "{report}"], where=Where.IN_SANDBOX, files=(SandboxFile("t", b"t"),)))
    suite = spec.reward.test_suite
    assert suite.where == action_pb2.REWARD_PLACE_IN_SANDBOX
    assert suite.files[0].path == "t"
    assert list(suite.command.argv.arguments) == ["pytest", "{report}"]
    assert suite.background == action_pb2.REWARD_BACKGROUND_UNSPECIFIED
    for action in (
        RewardTests("t", where=Where.IN_SANDBOX, background=BackgroundProcesses.RUN),
        RewardScript("t {score}", where=Where.IN_SANDBOX, background=BackgroundProcesses.RUN),
    ):
        reward = _encode(action)[0].reward
        assert (reward.test_suite.background or reward.script.background) == action_pb2.REWARD_BACKGROUND_RUN


def test_an_env_step_in_a_session() -> None:
    spec, _ = _encode(EnvStep(Command.python("1 + 1"), session="main", download=("a", "b"), stream_output=True))
    step = spec.env_step
    assert (step.command.python, step.session, list(step.download), step.stream_output) == (
        "1 + 1",
        "main",
        ["a", "b"],
        True,
    )
    plain, _ = _encode(EnvStep(Command.shell("ls")))
    assert {field.name for field, _ in plain.env_step.ListFields()} == {"command"}


def test_options() -> None:
    spec, _ = _encode(
        EnvReset(),
        label="l",
        task="k",
        weight=2.0,
        demand=Demand(Resource("memory", 256, hold=Hold.TRAJECTORY), cpu=Elastic(1, 4, amdahl_fraction=0.9)),
        timeouts=Timeouts(1.5, 2, 3, 4),
        retry=Retry(5, 0.25, 1.5, 8),
        unservable=Unservable.WAIT,
        expected_duration_s=0.5,
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )
    assert spec.traceparent == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    memory, cpu = spec.demand.resources
    assert (memory.resource, memory.min_milli_units, memory.hold) == ("memory", 256_000, action_pb2.HOLD_TRAJECTORY)
    assert (cpu.min_milli_units, cpu.max_milli_units, cpu.speed_up.amdahl_fraction) == (1000, 4000, 0.9)
    assert (spec.timeouts.schedule_to_start.seconds, spec.timeouts.schedule_to_start.nanos) == (1, 500_000_000)
    assert [getattr(spec.timeouts, n).seconds for n in ("start_to_close", "schedule_to_close", "heartbeat")] == [
        2,
        3,
        4,
    ]
    assert (spec.retry.max_attempts, spec.retry.backoff_multiplier, spec.retry.max_backoff.seconds) == (5, 1.5, 8)
    assert (spec.label, spec.task, spec.weight, spec.unservable) == ("l", "k", 2.0, action_pb2.UNSERVABLE_WAIT)
    assert spec.expected_duration.nanos == 500_000_000


def test_unset_options_take_the_servers_defaults() -> None:
    spec, _ = _encode(EnvReset())
    set_fields = {field.name for field, _ in spec.ListFields()}
    assert set_fields == {"job_id", "action_id", "trajectory_id", "env_reset"}


def test_an_empty_demand_differs_from_none() -> None:
    assert _encode(EnvReset(), demand=Demand())[0].HasField("demand")


def test_a_speed_up_table() -> None:
    spec, _ = _encode(EnvReset(), demand=Demand(cpu=Elastic(1, 4, speed_up={2: 1.5, 4: 2.0})))
    assert [(p.units, p.speed_up) for p in spec.demand.resources[0].speed_up.table.points] == [(2, 1.5), (4, 2.0)]


@pytest.mark.parametrize(
    ("action", "options", "field"),
    [
        (EnvReset(), {"weight": 0}, "weight"),
        (EnvReset(), {"weight": math.inf}, "weight"),
        (EnvReset(), {"timeouts": Timeouts(start_to_close_s=-1)}, "timeouts.start_to_close"),
        (EnvReset(), {"expected_duration_s": math.nan}, "expected_duration"),
        (EnvReset(), {"retry": Retry(max_attempts=0)}, "retry.max_attempts"),
        (EnvReset(), {"retry": Retry(backoff_multiplier=0.5)}, "retry.backoff_multiplier"),
        (EnvReset(disk_mib=0), {}, "env_reset.disk_mib"),
        (EnvReset((SandboxFile("a", "text"),)), {}, "env_reset.files[0].content"),  # type: ignore[arg-type]
        (Generate([1], Sampling(top_p=0)), {}, "generate.sampling.top_p"),
        (Generate([1, 2**40]), {}, "generate.prompt_token_ids[1]"),
        (Generate(["a"]), {}, "generate.prompt_token_ids[0]"),  # type: ignore[list-item]
        (Generate(None), {}, "generate.prompt_token_ids"),  # type: ignore[arg-type]
        (Generate([1], Sampling(max_new_tokens=2**31)), {}, "generate.sampling.max_new_tokens"),
        (Generate([1], Sampling(temperature="hot")), {}, "generate.sampling.temperature"),  # type: ignore[arg-type]
        (Generate([1], Sampling(top_p="all")), {}, "generate.sampling.top_p"),  # type: ignore[arg-type]
        (Generate([1], Sampling(top_k=-(2**40))), {}, "generate.sampling.top_k"),
        (Generate([1], Sampling(seed=-1)), {}, "generate.sampling.seed"),
        (Generate([1], Sampling(stop_token_ids=(2**31,))), {}, "generate.sampling.stop_token_ids[0]"),
        (RewardModel([2**31]), {}, "reward.model.token_ids[0]"),
        (EnvReset(disk_mib=2**63), {}, "env_reset.disk_mib"),
        (EnvReset(max_processes="many"), {}, "env_reset.max_processes"),  # type: ignore[arg-type]
        (EnvReset(memory="2GiB"), {}, "env_reset.memory"),  # type: ignore[arg-type]
        (EnvReset((SandboxFile("a", b"", mode=-1),)), {}, "env_reset.files[0].mode"),
        (EnvReset((SandboxFile("\ud800", b""),)), {}, "env_reset.files[0].path"),
        (EnvStep(Command.argv("ls", 1)), {}, "env_step.command.argv.arguments[1]"),  # type: ignore[arg-type]
        (EnvStep(Command.shell("ls", environment={"A": 1})), {}, "env_step.command.environment"),  # type: ignore[dict-item]
        (EnvStep(Command.shell("ls", max_output_bytes=2**63)), {}, "env_step.command.max_output_bytes"),
        (EnvReset(), {"demand": Demand(cpu=Elastic(1, 4, speed_up={2**63: 2.0}))}, "demand.cpu.speed_up[0].units"),
        (EnvReset(), {"retry": Retry(max_attempts=2**31)}, "retry.max_attempts"),
        (EnvReset(), {"timeouts": Timeouts(heartbeat_s=1e300)}, "timeouts.heartbeat"),
        (EnvReset(), {"label": "\ud800"}, "label"),
    ],
)
def test_what_the_contract_cannot_carry_is_refused(action: Action[Any], options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        _encode(action, **options)
    assert caught.value.field == field
    assert caught.value.rule


@pytest.mark.parametrize(
    ("cores", "milli"),
    [
        (0.5, (500, 0)),
        (0.1, (100, 0)),
        (2.001, (2001, 0)),
        (0, (0, 0)),
        (3, (3000, 0)),
        (Elastic(0.5, 4), (500, 4000)),
        (Elastic(0, 0.25), (0, 250)),
    ],
)
def test_cores_are_sent_in_thousandths(cores: float | Elastic, milli: tuple[int, int]) -> None:
    (cpu,) = _encode(EnvReset(), demand=Demand(cpu=cores))[0].demand.resources
    assert (cpu.min_milli_units, cpu.max_milli_units) == milli


def test_a_value_out_of_range_is_named_with_its_rule() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        _encode(Generate([1], Sampling(max_new_tokens=2**31)))
    assert caught.value.value == "2147483648"
    assert caught.value.rule == "a whole number from -2147483648 to 2147483647"


@pytest.mark.parametrize(("size", "quorum", "field"), [(2**31, None, "group.size"), (2, 3, "group.quorum")])
def test_a_group_too_large_to_carry_is_refused(size: int, quorum: int | None, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        encode_trajectory(TrajectoryDescription("j", "t", GroupDescription("g", size, quorum)))
    assert caught.value.field == field


def test_large_content_goes_by_reference() -> None:
    content = b"x" * (MAX_INLINE_BYTES + 1)
    spec, uploads = _encode(EnvReset((SandboxFile("small", b"x" * MAX_INLINE_BYTES), SandboxFile("large", content))))
    small, large = spec.env_reset.files
    sha256 = hashlib.sha256(content).hexdigest()
    assert small.content.HasField("inline")
    assert (large.content.reference.sha256, large.content.reference.size) == (sha256, len(content))
    assert uploads == {sha256: content}


def test_many_small_files_stay_within_the_inline_total() -> None:
    size = MAX_INLINE_BYTES
    files = tuple(SandboxFile(str(i), bytes([i]) * size) for i in range(12))
    spec, uploads = _encode(EnvReset(files))
    inline = [file for file in spec.env_reset.files if file.content.HasField("inline")]
    assert len(inline) * size == MAX_INLINE_TOTAL_BYTES
    assert len(uploads) == 12 - len(inline)


@pytest.mark.parametrize("value", [0, 2**63])
@pytest.mark.parametrize("field", ["max_actions", "staleness.max_versions"])
def test_a_job_refuses_a_zero_that_would_mean_a_default_and_what_is_too_large(field: str, value: int) -> None:
    given: dict[str, Any] = {"staleness": Staleness(value)} if "." in field else {field: value}
    with pytest.raises(InvalidArgumentError) as caught:
        encode_job(JobDescription("j", **given))
    assert caught.value.field == field
    assert caught.value.value == str(value)


def test_a_job_without_share_is_refused() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        encode_job(JobDescription("j", 0))
    assert caught.value.field == "share"


@pytest.mark.parametrize("seconds", [0.0, 0.1, 1.9999999999, 1e9 + 0.25])
def test_durations(seconds: float) -> None:
    message = duration("field", seconds)
    assert message.seconds + message.nanos / 1e9 == pytest.approx(seconds)
    assert 0 <= message.nanos < 1_000_000_000
