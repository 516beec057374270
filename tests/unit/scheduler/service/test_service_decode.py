"""Every rule of a submit, a job and a trajectory: INVALID_ARGUMENT, with the field, the value and the rule."""

from __future__ import annotations

import math

import pytest
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, RetryPolicy, SandboxCopy, Timeouts
from callsheet.scheduler.service.codec.decode import decode_action
from callsheet.v1 import action_pb2, common_pb2
from callsheet.v1.names import MAX_SPEC_BYTES
from callsheet.wire.encoded_fields import embedded, tag
from google.protobuf import text_format

from tests.support.refusals import refusal

BASE = 'job_id: "j" action_id: "a" '
SANDBOXED = BASE + 'trajectory_id: "t" '
GENERATE = "generate { prompt_token_ids: 1 sampling { max_new_tokens: 1 } }"
STEP = 'env_step { command { shell: "ls" } }'
CPU = 'resource: "cpu" min_milli_units: 1000 max_milli_units: 4000'
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def spec(text: str) -> action_pb2.ActionSpec:
    return text_format.Parse(text, action_pb2.ActionSpec())


def demand(text: str) -> str:
    return BASE + GENERATE + f" demand {{ {text} }}"


def timeouts(text: str) -> str:
    return BASE + GENERATE + f" timeouts {{ {text} }}"


def retry(text: str) -> str:
    return BASE + GENERATE + f" retry {{ {text} }}"


FRESH = 'command { shell: "t" } files { path: "f" content { inline: "" } }'


def test_an_oversized_action_is_refused_before_anything_else_is_looked_at() -> None:
    large = spec(SANDBOXED + STEP)
    for number in range(40):
        large.env_step.files.add(path=f"f{number}", content=common_pb2.Blob(inline=b"x" * 60_000))
    refused = refusal(lambda: decode_action(large))
    assert (refused.field, refused.rule) == ("action", f"must have at most {MAX_SPEC_BYTES} bytes")


def test_a_long_value_is_shortened() -> None:
    refused = refusal(lambda: decode_action(spec(f'job_id: "{"x" * 5000}" action_id: "a" {GENERATE}')))
    assert len(refused.value) == 200


def test_what_is_left_out_takes_the_defaults() -> None:
    request, references = decode_action(spec(BASE + GENERATE))
    assert references == []
    assert (request.key, request.kind, request.trajectory_id) == (ActionKey("j", "a"), ActionKind.GENERATE, "")
    assert request.demand.entries == ()
    assert request.timeouts == Timeouts(1800.0, 600.0, 3600.0, 0.0, execution_given=False, close_given=False)
    assert request.retry == RetryPolicy(3, 0.2, 2.0, 30.0)
    assert (request.weight, request.wait_if_unservable, request.in_sandbox) == (1.0, False, False)


@pytest.mark.parametrize(
    ("payload", "kind", "units", "in_sandbox", "service"),
    [
        (GENERATE, ActionKind.GENERATE, {}, False, ""),
        ("env_reset {}", ActionKind.ENV_RESET, {"cpu": 1, "memory": 256}, True, ""),
        ('env_reset { image: "a/b:1" }', ActionKind.ENV_RESET, {"cpu": 1, "memory": 256}, True, "sandbox:a/b:1"),
        (STEP, ActionKind.ENV_STEP, {"cpu": 1}, True, ""),
        ('service: "api" tool_call { method: "m" }', ActionKind.TOOL_CALL, {}, False, "api"),
        (f"reward {{ test_suite {{ {FRESH} }} }}", ActionKind.REWARD, {"cpu": 1}, False, "test-suite"),
        (f'reward {{ test_suite {{ {FRESH} image: "a" }} }}', ActionKind.REWARD, {"cpu": 1}, False, "sandbox:a"),
        (f"reward {{ script {{ {FRESH} score_file: 's' }} }}", ActionKind.REWARD, {"cpu": 1}, False, "test-suite"),
        (
            f"service: 'own' reward {{ script {{ {FRESH} score_file: 's' image: 'a' }} }}",
            ActionKind.REWARD,
            {"cpu": 1},
            False,
            "own",
        ),
        (
            'reward { script { where: REWARD_PLACE_IN_SANDBOX command { shell: "t > {score}" } } }',
            ActionKind.REWARD,
            {"cpu": 1},
            True,
            "test-suite",
        ),
        (
            'reward { test_suite { where: REWARD_PLACE_IN_SANDBOX command { shell: "t" } } }',
            ActionKind.REWARD,
            {"cpu": 1},
            True,
            "test-suite",
        ),
        ("reward { model { token_ids: 1 } }", ActionKind.REWARD, {}, False, "scorer"),
        ('service: "judge" reward { model { token_ids: 1 } }', ActionKind.REWARD, {}, False, "judge"),
    ],
)
def test_the_payload_decides_the_kind_and_its_defaults(
    payload: str, kind: ActionKind, units: dict[str, int], in_sandbox: bool, service: str
) -> None:
    request, _ = decode_action(spec(SANDBOXED + payload))
    assert (request.kind, request.demand.minimum(), request.in_sandbox, request.service) == (
        kind,
        units,
        in_sandbox,
        service,
    )


@pytest.mark.parametrize(
    ("payload", "copy"),
    [
        (f"reward {{ test_suite {{ {FRESH} }} }}", SandboxCopy.IF_ANY),
        ('reward { test_suite { command { shell: "t" } } }', SandboxCopy.ALWAYS),
        ('reward { script { command { shell: "t > {score}" } where: REWARD_PLACE_FRESH } }', SandboxCopy.ALWAYS),
        (f'reward {{ test_suite {{ {FRESH} image: "a" }} }}', SandboxCopy.NEVER),
        ('reward { test_suite { command { shell: "t" } where: REWARD_PLACE_IN_SANDBOX } }', SandboxCopy.NEVER),
        ("reward { model { token_ids: 1 } }", SandboxCopy.NEVER),
        (STEP, SandboxCopy.NEVER),
    ],
)
def test_a_fresh_reward_without_an_image_copies_the_sandbox_of_its_trajectory(payload: str, copy: SandboxCopy) -> None:
    assert decode_action(spec(SANDBOXED + payload))[0].copy is copy


def test_a_fresh_reward_of_a_job_copies_nothing() -> None:
    request, _ = decode_action(spec(BASE + f"reward {{ test_suite {{ {FRESH} }} }}"))
    assert request.copy is SandboxCopy.NEVER


def test_a_tool_call_is_made_once_unless_it_is_idempotent() -> None:
    for declared, expected in (("", True), ("idempotent: true", False)):
        text = f'{BASE} service: "api" tool_call {{ method: "m" {declared} }}'
        assert decode_action(spec(text))[0].called_once is expected
    assert not decode_action(spec(BASE + GENERATE))[0].called_once


def test_a_reset_may_give_its_commands_an_execution_timeout() -> None:
    request, _ = decode_action(spec(SANDBOXED + "env_reset { defaults { start_to_close { seconds: 45 } } }"))
    assert request.command_timeout == 45.0


def test_only_the_memory_of_a_reset_is_kept_by_default() -> None:
    request, _ = decode_action(spec(SANDBOXED + "env_reset {}"))
    assert {entry.resource: entry.held_by_trajectory for entry in request.demand.entries} == {
        "cpu": False,
        "memory": True,
    }
    memory = request.demand.minimum()["memory"]
    assert request.demand.by_need_mib == memory
    sure, _ = decode_action(spec(SANDBOXED + "env_reset { guaranteed_memory: true }"))
    assert (sure.demand.minimum(), sure.demand.by_need_mib) == (request.demand.minimum(), 0)
    assert sure.demand != request.demand, "they are of different classes"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start_to_close { seconds: 5000 }", Timeouts(1800.0, 5000.0, 6800.0, close_given=False)),
        (
            "schedule_to_start { seconds: 4000 }",
            Timeouts(4000.0, 600.0, 4000.0, execution_given=False, close_given=False),
        ),
        ("schedule_to_close { seconds: 60 }", Timeouts(60.0, 60.0, 60.0, execution_given=False)),
        (
            "schedule_to_close { seconds: 100 } start_to_close { seconds: 100 } heartbeat { nanos: 500000000 }",
            Timeouts(100.0, 100.0, 100.0, 0.5),
        ),
        ("schedule_to_close { seconds: 2592000 }", Timeouts(1800.0, 600.0, 2592000.0, execution_given=False)),
    ],
)
def test_deadlines_that_were_asked_for_make_room_for_themselves(text: str, expected: Timeouts) -> None:
    assert decode_action(spec(timeouts(text)))[0].timeouts == expected


def test_zero_is_a_backoff_and_unset_is_the_default() -> None:
    decoded = decode_action(spec(retry("max_attempts: 1 initial_backoff {} max_backoff {}")))[0].retry
    assert decoded == RetryPolicy(1, 0.0, 2.0, 0.0)


def test_a_demand_is_decoded_with_its_curve_and_its_hold() -> None:
    text = (
        'demand { resources { resource: "cpu" min_milli_units: 1000 max_milli_units: 8000 hold: HOLD_TRAJECTORY '
        "speed_up { table { points { units: 2 speed_up: 1.9 } points { units: 8 speed_up: 4 } } } } "
        'resources { resource: "gpu" min_milli_units: 1000 } }'
    )
    request, _ = decode_action(spec(SANDBOXED + "env_reset {} " + text))
    cpu, gpu = request.demand.entries
    assert (cpu.min_units, cpu.max_units, cpu.held_by_trajectory) == (1, 8, True)
    assert cpu.speed_up.points == ((2, 1.9), (8, 4.0))
    assert (gpu.min_units, gpu.max_units, gpu.elastic) == (1, 1, False)


def test_equal_parts_are_decoded_once_and_shared() -> None:
    first, second = (
        decode_action(spec(f'job_id: "j" action_id: "{name}" {GENERATE} demand {{ resources {{ {CPU} }} }}'))[0]
        for name in "ab"
    )
    assert first.demand is second.demand
    assert first.timeouts is second.timeouts
    assert first.retry is second.retry
    reset = decode_action(
        spec(SANDBOXED + "env_reset {} " + f"demand {{ resources {{ {CPU} hold: HOLD_TRAJECTORY }} }}")
    )[0]
    assert reset.demand.entries[0].held_by_trajectory
    assert "hold" in refusal(lambda: decode_action(spec(demand(f"resources {{ {CPU} hold: HOLD_TRAJECTORY }}")))).field


@pytest.mark.parametrize("name", ["demand", "timeouts", "retry"])
def test_a_part_with_large_unknown_fields_is_decoded_and_not_kept(name: str) -> None:
    part = f"demand {{ resources {{ {CPU} }} }} timeouts {{ heartbeat {{ seconds: 3 }} }} retry {{ max_attempts: 7 }}"
    action = spec(f'job_id: "j" action_id: "a" {GENERATE} {part}')
    plain, _ = decode_action(action)
    getattr(action, name).MergeFromString(embedded(tag(1000), bytes(100_000)))
    first, second = (getattr(decode_action(action)[0], name) for _ in range(2))
    assert first == second == getattr(plain, name)
    assert first is not second


def test_the_hash_of_the_body_tells_bodies_apart_and_nothing_else() -> None:
    environment = {f"V{number}": "x" for number in range(50)}
    first, second = spec(SANDBOXED + STEP), spec(SANDBOXED + STEP)
    first.env_step.command.environment.update(environment)
    second.env_step.command.environment.update(dict(reversed(environment.items())))
    assert decode_action(first)[0].body_hash == decode_action(second)[0].body_hash
    second.env_step.command.environment["V1"] = "y"
    assert decode_action(first)[0].body_hash != decode_action(second)[0].body_hash


def test_a_decoded_spec_decodes_to_the_same_request() -> None:
    request, _ = decode_action(spec(SANDBOXED + STEP + " weight: 2 label: 'ls'"))
    again, _ = decode_action(action_pb2.ActionSpec.FromString(request.spec))
    for name in ("key", "kind", "demand", "timeouts", "retry", "weight", "label", "in_sandbox", "body_hash", "spec"):
        assert getattr(again, name) == getattr(request, name)


@pytest.mark.parametrize("flags", ["00", "01", "ff"])
def test_a_span_is_kept_with_the_action_and_is_no_part_of_its_body(flags: str) -> None:
    bare, traced = spec(SANDBOXED + STEP), spec(SANDBOXED + STEP)
    traced.traceparent = f"00-{TRACE}-{SPAN}-{flags}"
    request, _ = decode_action(traced)
    assert request.traceparent == traced.traceparent
    assert request.body_hash == decode_action(bare)[0].body_hash
    kept = action_pb2.ActionSpec.FromString(request.spec)
    assert kept == traced, "what the journal has tells of it"
    again, _ = decode_action(kept)
    assert (again.traceparent, again.spec) == (request.traceparent, request.spec)


def test_references_to_stored_payloads_are_collected() -> None:
    stored = common_pb2.Blob(reference=common_pb2.PayloadReference(sha256="a" * 64, size=7))
    step = spec(SANDBOXED + STEP)
    step.env_step.files.add(path="f", content=stored)
    step.env_step.command.stdin.CopyFrom(stored)
    assert [each.size for each in decode_action(step)[1]] == [7, 7]


@pytest.mark.parametrize(
    ("milli", "units", "most_cores"),
    [
        ((500, 0), (1, 1), 0.5),
        ((500, 4000), (1, 4), math.inf),
        ((500, 1500), (1, 2), 1.5),
        ((1500, 0), (2, 2), 1.5),
        ((1, 0), (1, 1), 0.001),
        ((0, 250), (0, 1), 0.25),
        ((2000, 0), (2, 2), math.inf),
        ((0, 0), (0, 0), math.inf),
    ],
)
def test_a_fraction_of_a_core_is_rounded_up_and_bounds_its_use(
    milli: tuple[int, int], units: tuple[int, int], most_cores: float
) -> None:
    least, most = milli
    text = f'resources {{ resource: "cpu" min_milli_units: {least} max_milli_units: {most} }}'
    request = decode_action(spec(demand(text)))[0]
    (cpu,) = request.demand.entries
    assert (cpu.min_units, cpu.max_units) == units
    assert request.demand.most_cores() == most_cores
