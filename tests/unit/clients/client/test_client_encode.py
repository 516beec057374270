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
    ChatMessage,
    Command,
    CommandDefaults,
    ConversationText,
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
from callsheet.client.codec.fields import MAX_INLINE_TOTAL_BYTES, duration
from callsheet.client.codec.jobs import encode_job, encode_trajectory
from callsheet.client.words.actions import Submission
from callsheet.v1 import action_pb2
from callsheet.v1.names import MAX_INLINE_BYTES
from google.protobuf import text_format


def _encode(action: Action[Any], **options: Any) -> tuple[action_pb2.ActionSpec, dict[str, bytes]]:
    return encode_submission(Submission("job", "t", "a", action, cast("ActionOptions", options)))


_PLAIN_STEP = 'env_step { command { shell: "ls" } }'
_IN_TRAJECTORY = "min_milli_units: 256000 hold: HOLD_TRAJECTORY"
_SPAN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_ENCODED: list[tuple[Action[Any], dict[str, Any], str]] = [
    (
        Generate([1, 2], Sampling(5, 0.5, 0.75, 10, 7, ("end",), (3,), LogProbsMode.RAW), "tiny"),
        {},
        """service: "tiny" generate { prompt_token_ids: [1, 2] sampling { max_new_tokens: 5 temperature: 0.5 top_p: 0.75
        top_k: 10 seed: 7 stop: "end" stop_token_ids: 3 log_probs_mode: LOG_PROBS_MODE_RAW } }""",
    ),
    (
        EnvReset(
            (SandboxFile("a.py", b"a", mode=0o755), SandboxFile(".", b"tar", unpack=True)),
            Command.argv("sh", environment={"A": "b"}),
            disk_mib=64,
            max_processes=32,
            image="debian",
            repeat_set_up=True,
            memory="guaranteed",
            defaults=CommandDefaults({"C": "d"}, "w", "me", 1.5, 9),
        ),
        {},
        """env_reset { files { path: "a.py" content { inline: "a" } mode: 493 }
        files { path: "." content { inline: "tar" } unpack: true }
        set_up { argv { arguments: "sh" } environment { key: "A" value: "b" } }
        disk_mib: 64 max_processes: 32 image: "debian" repeat_set_up: true guaranteed_memory: true
        defaults { environment { key: "C" value: "d" } working_directory: "w" user: "me" max_output_bytes: 9
        start_to_close { seconds: 1 nanos: 500000000 } } }""",
    ),
    (
        EnvStep(Command.shell("cat", working_directory="d", stdin=b"x", max_output_bytes=9)),
        {},
        'env_step { command { shell: "cat" working_directory: "d" stdin { inline: "x" } max_output_bytes: 9 } }',
    ),
    (
        EnvStep(Command.python("1 + 1"), session="main", download=("a", "b"), stream_output=True),
        {},
        'env_step { command { python: "1 + 1" } session: "main" download: ["a", "b"] stream_output: true }',
    ),
    (EnvStep(Command.shell("ls")), {}, _PLAIN_STEP),
    (
        RewardTests(["pytest", "{report}"], where=Where.IN_SANDBOX, files=(SandboxFile("t", b"t"),)),
        {},
        """reward { test_suite { where: REWARD_PLACE_IN_SANDBOX files { path: "t" content { inline: "t" } }
        command { argv { arguments: ["pytest", "{report}"] } } } }""",
    ),
    (
        RewardScript("t {score}", where=Where.IN_SANDBOX, background=BackgroundProcesses.RUN),
        {},
        """reward { script { where: REWARD_PLACE_IN_SANDBOX command { shell: "t {score}" }
        background: REWARD_BACKGROUND_RUN } }""",
    ),
    (
        RewardTests("t", image="debian", tests=3),
        {},
        'reward { test_suite { where: REWARD_PLACE_FRESH command { shell: "t" } image: "debian" tests: 3 } }',
    ),
    (
        RewardModel(text=ConversationText("p", "r", [ChatMessage("user", "x")]), model="m"),
        {},
        'service: "m" reward { model { text { prompt: "p" response: "r" messages { role: "user" content: "x" } } } }',
    ),
    (
        EnvStep("ls"),
        {
            "label": "l",
            "task": "k",
            "weight": 2.0,
            "demand": Demand(Resource("memory", 256), cpu=Elastic(1, 4, amdahl_fraction=0.5)),
            "timeouts": Timeouts(1.5, 3, 4, 2),
            "retry": Retry(5, 0.25, 1.5, 8),
            "unservable": Unservable.WAIT,
            "expected_duration_s": 0.5,
            "traceparent": _SPAN,
        },
        f"""{_PLAIN_STEP} label: "l" task: "k" weight: 2 unservable: UNSERVABLE_WAIT traceparent: "{_SPAN}"
        demand {{ resources {{ resource: "memory" min_milli_units: 256000 hold: HOLD_ACTION }}
        resources {{ resource: "cpu" min_milli_units: 1000 max_milli_units: 4000 hold: HOLD_ACTION
        speed_up {{ amdahl_fraction: 0.5 }} }} }}
        timeouts {{ schedule_to_start {{ seconds: 1 nanos: 500000000 }} start_to_close {{ seconds: 3 }}
        schedule_to_close {{ seconds: 4 }} heartbeat {{ seconds: 2 }} }}
        retry {{ max_attempts: 5 initial_backoff {{ nanos: 250000000 }} backoff_multiplier: 1.5
        max_backoff {{ seconds: 8 }} }} expected_duration {{ nanos: 500000000 }}""",
    ),
    (
        EnvReset(),
        {"demand": Demand(Resource("memory", 256, hold=Hold.TRAJECTORY), cpu=Elastic(1, 4, speed_up={2: 1.5, 4: 2.0}))},
        f"""env_reset {{}} demand {{ resources {{ resource: "memory" {_IN_TRAJECTORY} }} resources {{ resource: "cpu"
        min_milli_units: 1000 max_milli_units: 4000 hold: HOLD_ACTION speed_up {{ table {{
        points {{ units: 2 speed_up: 1.5 }} points {{ units: 4 speed_up: 2 }} }} }} }} }}""",
    ),
    (EnvReset(), {"demand": Demand(), "retry": None, "traceparent": ""}, "env_reset {} demand {}"),
    (EnvReset(), {}, "env_reset {}"),
]


@pytest.mark.parametrize(("action", "options", "expected"), _ENCODED)
def test_an_action_is_the_message_of_its_fields_and_options(
    action: Action[Any], options: dict[str, Any], expected: str
) -> None:
    spec, uploads = _encode(action, **options)
    text = f'job_id: "job" action_id: "a" trajectory_id: "t" {expected}'
    assert spec == text_format.Parse(text, action_pb2.ActionSpec())
    assert uploads == {}


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
