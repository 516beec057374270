"""Between a manager's messages and the core: registrations, ends, and what is sent back."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.costs import Cost
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, FailureKind, TimeoutKind, Token
from callsheet.scheduler.core.words.plan import GrantPrediction
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.core.words.registration import (
    NodeDescription,
    QuotaDescription,
    RunningAttempt,
    SandboxRef,
    ServiceDescription,
    ServiceState,
)
from callsheet.scheduler.service.codec.costs import MAX_RESOURCES
from callsheet.scheduler.service.codec.decode import decode_action
from callsheet.scheduler.service.codec.manager_commands import encode_command
from callsheet.scheduler.service.codec.manager_wire import decode_item, decode_registration, references_of
from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2, outcome_pb2
from callsheet.v1.contract import unknown_in
from google.protobuf import text_format

from tests.support.peers import Peer

SERVICE = 'services { name: "s" kinds: ACTION_KIND_GENERATE } '
KEY = 'key { job_id: "j" action_id: "a" }'
NODE = 'node { node_id: "n" } '
WHO = 'manager_id: "m" incarnation: "i" '

REFUSED = [
    (WHO + NODE, "registration.services", "[]", "at least one service"),
    ('incarnation: "i" ' + NODE + SERVICE, "registration.manager_id", "", "1 to 256"),
    ('manager_id: "m" ' + NODE + SERVICE, "registration.incarnation", "", "1 to 256"),
    (WHO + SERVICE, "registration.node.node_id", "", "1 to 256"),
    (WHO + NODE + SERVICE + SERVICE, "registration.services", "['s', 's']", "different names"),
    (WHO + NODE + 'services { name: "s" }', "registration.services[0].kinds", "[]", "at least one kind"),
    (WHO + NODE + 'services { name: "s" kinds: 0 }', "registration.services[0].kinds", "0", "must be specified"),
    (WHO + NODE + 'services { name: "s" kinds: 77 }', "registration.services[0].kinds", "77", "not a value"),
    (WHO + NODE + "services { kinds: 1 }", "registration.services[0].name", "", "1 to 256"),
    (WHO + NODE + 'services { name: "s" kinds: 1 slots: -1 }', "registration.services[0].slots", "-1", "at least 0"),
    (
        WHO + NODE + SERVICE + 'services { name: "u" kinds: 1 reserved { key: "cpu" value: -1 } }',
        "registration.services[1].reserved[cpu]",
        "-1",
        "between 0 and",
    ),
    (WHO + NODE + 'services { name: "s" kinds: 1 setup_s: inf }', "registration.services[0].setup_s", "inf", "between"),
    (
        WHO + NODE + 'services { name: "s" kinds: 1 instances: -1 }',
        "registration.services[0].instances",
        "-1",
        "at least 0",
    ),
    (
        WHO + SERVICE + 'node { node_id: "n" quotas { key: "" value { per_second: 1 burst: 1 } } }',
        "registration.node.quotas",
        "",
        "1 to 256",
    ),
    *[
        (
            WHO + SERVICE + f'node {{ node_id: "n" capacity {{ key: "gpu" value: 1 }} quotas {{ {quota} }} }}',
            f"registration.node.quotas[{field}]{part}",
            value,
            rule,
        )
        for quota, field, part, value, rule in [
            ('key: "cpu" value { per_second: 1 burst: 1 }', "cpu", "", "cpu", "a resource of the node's capacity"),
            ('key: "gpu" value { per_second: 1 burst: 1 }', "gpu", "", "gpu", "a resource of the node's capacity"),
            ('key: "api" value { burst: 1 }', "api", ".per_second", "0", "above 0"),
            ('key: "api" value { per_second: nan burst: 1 }', "api", ".per_second", "nan", "between 0.0 and"),
            ('key: "api" value { per_second: 1 }', "api", ".burst", "0", "between 1 and"),
        ]
    ],
    *[
        (
            WHO
            + 'node { node_id: "n" quotas { key: "api" value { per_second: 1 burst: 1 } } }'
            + f'services {{ name: "s" kinds: 1 {taken} {{ key: "api" value: 1 }} }}',
            f"registration.services[0].{taken}",
            "api",
            "must not be a quota",
        )
        for taken in ("reserved", "shared")
    ],
    (
        WHO + NODE + SERVICE + 'services { name: "u" kinds: 1 shared { key: "cpu" value: 0 } }',
        "registration.services[1].shared[cpu]",
        "0",
        "between 1 and",
    ),
    (
        WHO + SERVICE + 'node { node_id: "n" capacity { key: "gpu" value: 9223372036854775807 } }',
        "registration.node.capacity[gpu]",
        "9223372036854775807",
        "between 0 and",
    ),
    (
        WHO + SERVICE + 'node { node_id: "n" capacity { key: "gpu" value: -1 } }',
        "registration.node.capacity[gpu]",
        "-1",
        "between 0 and 1000000000000",
    ),
    (
        WHO + SERVICE + 'node { node_id: "n" capacity { key: "" value: 1 } }',
        "registration.node.capacity",
        "",
        "1 to 256",
    ),
    (
        WHO + SERVICE + 'node { node_id: "n" capacity { key: "cpu" value: 4 } }',
        "registration.node.capacity[cpu]",
        "4",
        "follows from numa_nodes",
    ),
    (
        WHO + SERVICE + 'node { node_id: "n" numa_nodes { cores: [0, 1] } numa_nodes { cores: 1 } }',
        "registration.node.numa_nodes",
        "[0, 1, 1]",
        "each core once",
    ),
    (
        WHO + SERVICE + 'node { node_id: "n" numa_nodes { cores: -1 } }',
        "registration.node.numa_nodes",
        "[-1]",
        "none below 0",
    ),
    *[
        (WHO + NODE + SERVICE + text, field, value, rule)
        for text, field, value, rule in [
            ('running { key { job_id: "j" } attempt: 1 }', "registration.running.key.action_id", "", "1 to 256"),
            (f"running {{ {KEY} }}", "registration.running.attempt", "0", "at least 1"),
            (f"running {{ {KEY} attempt: 1 cores: -1 }}", "registration.running.cores", "-1", "at least 0"),
            (
                f'running {{ {KEY} attempt: 1 resources {{ key: "gpu" value: -1 }} }}',
                "registration.running.resources[gpu]",
                "-1",
                "between 0 and",
            ),
            (
                'sandboxes { job_id: "j" trajectory_id: "t" sandbox_id: "a\\000b" }',
                "sandbox.sandbox_id",
                "a\0b",
                "printable",
            ),
            ('sandboxes { job_id: "j" sandbox_id: "x" }', "sandbox.trajectory_id", "", "1 to 256"),
            (
                'sandboxes { job_id: "j" trajectory_id: "t" sandbox_id: "x" held_mib: -1 }',
                "sandbox.held_mib",
                "-1",
                "between 0 and",
            ),
        ]
    ],
]


@pytest.mark.parametrize(("text", "field", "value", "rule"), REFUSED, ids=[f"{case[1]}-{case[3]}" for case in REFUSED])
def test_a_broken_registration_is_refused(text: str, field: str, value: str, rule: str) -> None:
    message = text_format.Parse(text, manager_service_pb2.Registration())
    with pytest.raises(RefusedError) as refused:
        decode_registration(Peer("session"), message)
    assert refused.value.code is RefusalCode.INVALID_ARGUMENT
    assert (refused.value.field, refused.value.value) == (field, value)
    assert rule in refused.value.rule


def test_a_registration_is_taken_over_in_full() -> None:
    text = """
        manager_id: "m" incarnation: "i"
        node { node_id: "n" capacity { key: "memory" value: 512 } numa_nodes { cores: [0, 1] } numa_nodes { cores: 5 }
               quotas { key: "api" value { per_second: 0.5 burst: 3 } } }
        services { name: "s" kinds: [ACTION_KIND_ENV_RESET, ACTION_KIND_ENV_STEP] slots: 3
                   reserved { key: "cpu" value: 1 } policy_version: 4 shared { key: "cpu" value: 2 }
                   setup_s: 8.5 instances: 1 }
        running { token { epoch: 2 sequence: 9 } key { job_id: "j" action_id: "a" } attempt: 2 started: true
                  resources { key: "cpu" value: 1 } cores: 5 body_hash: "h" execution_s: 1.5 }
        sandboxes { job_id: "j" trajectory_id: "t" sandbox_id: "x" held_mib: 65 }
        capabilities { key: "isolation" value: "none" }
    """
    session = Peer("session")
    joined = decode_registration(session, text_format.Parse(text, manager_service_pb2.Registration()))
    assert joined == events.ManagerJoined(
        session=session,
        manager_id="m",
        incarnation="i",
        node=NodeDescription("n", {"memory": 512}, ((0, 1), (5,)), {"api": QuotaDescription(0.5, 3)}),
        services=(
            ServiceDescription(
                "s", frozenset({ActionKind.ENV_RESET, ActionKind.ENV_STEP}), 3, {"cpu": 1}, 4, {"cpu": 2}, 8.5, 1
            ),
        ),
        running=(RunningAttempt(Token(2, 9), ActionKey("j", "a"), 2, True, {"cpu": 1}, (5,), b"h", 1.5),),
        sandboxes=(SandboxRef("j", "t", "x"),),
        capabilities={"isolation": "none"},
    )
    assert joined.sandboxes[0].held_mib == 65, "it does not tell sandboxes apart"


def item(text: str) -> manager_service_pb2.ManagerItem:
    return text_format.Parse(text, manager_service_pb2.ManagerItem())


TOKEN = "token { epoch: 1 sequence: 2 } "


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("heartbeat {}", events.ManagerHeartbeat("m", Peer("session"))),
        (
            'heartbeat { services { name: "s" setup_s: 3.5 instances: 2 } }',
            events.ManagerHeartbeat("m", Peer("session"), (ServiceState("s", 3.5, 2),)),
        ),
        (
            'heartbeat { services { name: "s" setup_s: 3.5 no_room: true } }',
            events.ManagerHeartbeat("m", Peer("session"), (ServiceState("s", 3.5, 0, no_room=True),)),
        ),
        (
            'heartbeat { services { name: "s" waiting_for_memory: 7 } }',
            events.ManagerHeartbeat("m", Peer("session"), (ServiceState("s", 0.0, 0, waiting_for_memory=7),)),
        ),
        (
            'heartbeat { services { name: "s" demand { key: "k:tokens" value: 90 } } }',
            events.ManagerHeartbeat("m", Peer("session"), (ServiceState("s", 0.0, 0, demand={"k:tokens": 90}),)),
        ),
        ("draining {}", events.ManagerDraining("m", Peer("session"))),
        (f"started {{ {TOKEN} }}", events.AttemptStarted("m", Token(1, 2))),
        (f"progress {{ {TOKEN} }}", events.AttemptProgressed("m", Token(1, 2))),
        (f"progress {{ {TOKEN} execution_s: 0 }}", events.AttemptProgressed("m", Token(1, 2), 0.0)),
        (f"progress {{ {TOKEN} execution_s: 2.5 }}", events.AttemptProgressed("m", Token(1, 2), 2.5)),
        (f"progress {{ {TOKEN} execution_s: nan }}", events.AttemptProgressed("m", Token(1, 2), 0.0)),
        ("started {}", events.AttemptStarted("m", Token(0, 0))),
        (
            'sandbox_lost { sandbox { job_id: "j" trajectory_id: "t" sandbox_id: "x" } reason: "killed" }',
            events.SandboxLost("m", SandboxRef("j", "t", "x"), "killed"),
        ),
    ],
)
def test_items_are_events(text: str, event: events.Event) -> None:
    assert decode_item("m", Peer("session"), item(text)) == event


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('services { name: "" }', "heartbeat.services[0].name"),
        ('services { name: "s" } services { name: "s" setup_s: nan }', "heartbeat.services[1].setup_s"),
        ('services { name: "s" setup_s: -1 }', "heartbeat.services[0].setup_s"),
        ('services { name: "s" instances: -1 }', "heartbeat.services[0].instances"),
        ('services { name: "s" waiting_for_memory: -1 }', "heartbeat.services[0].waiting_for_memory"),
        ('services { name: "s" demand { key: "k" value: 0 } }', "heartbeat.services[0].demand[k]"),
    ],
)
def test_a_broken_service_state_is_refused(text: str, field: str) -> None:
    with pytest.raises(RefusedError) as refused:
        decode_item("m", Peer("session"), item(f"heartbeat {{ {text} }}"))
    assert (refused.value.code, refused.value.field) == (RefusalCode.INVALID_ARGUMENT, field)


@pytest.mark.parametrize("text", ["", "registration {}"])
def test_items_that_do_not_belong_here_are_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="registration only once") as refused:
        decode_item("m", Peer("session"), item(text))
    assert refused.value.code is RefusalCode.INVALID_ARGUMENT


def ended(result: str) -> events.AttemptEnded:
    text = f'ended {{ {TOKEN} key {{ job_id: "j" action_id: "a" }} attempt: 3 started: true body_hash: "h" {result} }}'
    event = decode_item("m", Peer("session"), item(text))
    assert isinstance(event, events.AttemptEnded)
    return event


def test_an_end_is_taken_over_in_full() -> None:
    event = ended("execution_s: 1.5 usage { cpu_s: 2 } succeeded { env_step { exit_code: 3 } }")
    assert (event.manager_id, event.token, event.key, event.attempt) == ("m", Token(1, 2), ActionKey("j", "a"), 3)
    assert (event.started, event.execution_s, event.body_hash) == (True, 1.5, b"h")
    assert event.usage == outcome_pb2.Usage(cpu_s=2)
    assert event.result == events.AttemptSucceeded(
        outcome_pb2.Succeeded(env_step=outcome_pb2.CommandResult(exit_code=3)).SerializeToString()
    )


def entry(resource: str, amount: str) -> str:
    return f'usage {{ cost {{ held {{ key: "{resource}" value: {amount} }} used {{ key: "cpu" value: 1 }} }} }}'


@pytest.mark.parametrize("amount", ["nan", "inf", "-inf", "-1", "0", "1e300"])
def test_an_amount_that_cannot_be_is_no_cost(amount: str) -> None:
    assert ended(f"{entry('cpu', amount)} cancelled {{}}").cost == Cost({}, {"cpu": 1.0})


def test_costs_that_nobody_could_add_up_are_left_out() -> None:
    assert ended(f"{entry('gpu', '2.5')} cancelled {{}}").cost == Cost({"gpu": 2.5}, {"cpu": 1.0})
    assert ended(f"{entry('calls:' + 300 * 'x', '1')} cancelled {{}}").cost == Cost({}, {"cpu": 1.0})
    many = " ".join(f'used {{ key: "calls:{number}" value: 1 }}' for number in range(MAX_RESOURCES + 1))
    assert ended(f"usage {{ cost {{ {many} }} }} cancelled {{}}").cost == Cost()


@pytest.mark.parametrize(("told", "known"), [("", 0), ("sandbox_held_mib: 65", 65), ("sandbox_held_mib: -3", 0)])
def test_an_end_tells_what_its_sandbox_holds(told: str, known: int) -> None:
    assert ended(f"{told} cancelled {{}}").sandbox_held_mib == known


def test_a_reset_names_its_sandbox() -> None:
    result = ended('succeeded { env_reset { sandbox_id: "x" trajectory_id: "t" } }').result
    assert isinstance(result, events.AttemptSucceeded)
    assert (result.sandbox_id, result.trajectory_id) == ("x", "t")


def test_a_reset_whose_sandbox_has_no_proper_id_failed() -> None:
    result = ended('succeeded { env_reset { sandbox_id: "a\\000b" trajectory_id: "t" } }').result
    assert result == events.AttemptFailed(FailureKind.INFRA, "no_result", "the id of the sandbox is none")


def test_failures() -> None:
    event = ended(
        'failed { kind: FAILURE_KIND_QUOTA reason: "r" message: "m" retry_after_s: 4 timeout: TIMEOUT_KIND_HEARTBEAT '
        "partial { env_step { exit_code: 1 } } }"
    )
    partial = outcome_pb2.Succeeded(env_step=outcome_pb2.CommandResult(exit_code=1)).SerializeToString()
    assert event.result == events.AttemptFailed(FailureKind.QUOTA, "r", "m", partial, TimeoutKind.HEARTBEAT, 4.0)


@pytest.mark.parametrize("kind", [0, 99])
def test_a_failure_without_a_known_kind_is_one_of_the_infrastructure(kind: int) -> None:
    assert ended(f"failed {{ kind: {kind} timeout: 99 }}").result == events.AttemptFailed(FailureKind.INFRA, "")


@pytest.mark.parametrize("odd", ["nan", "inf", "-inf", "-1"])
def test_times_that_are_none_count_as_none(odd: str) -> None:
    event = ended(f"execution_s: {odd} failed {{ kind: FAILURE_KIND_QUOTA retry_after_s: {odd} }}")
    assert isinstance(event.result, events.AttemptFailed)
    assert (event.execution_s, event.result.retry_after) == (0.0, 0.0)


def test_cancels_with_and_without_what_there_was() -> None:
    assert ended("cancelled {}").result == events.AttemptCancelled(None)
    assert ended("cancelled { partial {} }").result == events.AttemptCancelled(b"")
    assert ended("failed { kind: FAILURE_KIND_CANCELLED }").result == events.AttemptCancelled(None)


@pytest.mark.parametrize("told", [0, -11])
@pytest.mark.parametrize("result", ["succeeded { %s }", "failed { partial { %s } }", "cancelled { partial { %s } }"])
@pytest.mark.parametrize("place", ["env_step { %s }", "env_reset { set_up { %s } }", "reward { command { %s } }"])
def test_a_signal_that_an_older_manager_tells_beside_0_is_the_exit_code(place: str, result: str, told: int) -> None:
    event = ended(result % (place % f"exit_code: {told} signal: 11")).result
    done = event.result if isinstance(event, events.AttemptSucceeded) else event.partial
    expected = text_format.Parse(place % "exit_code: -11 signal: 11", outcome_pb2.Succeeded())
    assert outcome_pb2.Succeeded.FromString(done or b"") == expected


def decoded(message: manager_service_pb2.AttemptEnded) -> events.AttemptResult:
    """What became of an end."""
    event = decode_item("m", Peer("stream"), manager_service_pb2.ManagerItem(ended=message))
    assert isinstance(event, events.AttemptEnded)
    return event.result


def test_a_result_that_no_message_could_deliver_is_a_failure() -> None:
    stdout = common_pb2.Blob(inline=bytes(16 * 1024 * 1024 - 100_000))
    step = outcome_pb2.CommandResult(stdout=stdout)
    large = manager_service_pb2.AttemptEnded(succeeded=outcome_pb2.Succeeded(env_step=step))
    cancelled = manager_service_pb2.AttemptEnded(cancelled=outcome_pb2.Cancelled(partial=large.succeeded))
    for message in (large, cancelled):
        result = decoded(message)
        assert isinstance(result, events.AttemptFailed)
        assert (result.kind, result.reason) == (FailureKind.INFRA, "result_too_large")
    step.stdout.inline = bytes(8 << 20)
    fine = manager_service_pb2.AttemptEnded(succeeded=outcome_pb2.Succeeded(env_step=step))
    assert isinstance(decoded(fine), events.AttemptSucceeded)


def test_waits_of_unknown_causes_are_others_however_many_there_are() -> None:
    waits = " ".join(f'waited_s {{ key: "new-{index}" value: 0.5 }}' for index in range(1000))
    event = ended(f'waited_s {{ key: "cores" value: 2 }} waited_s {{ key: "image" value: nan }} {waits}')
    assert event.waited_s == {"cores": 2.0, "image": 0.0, "other": 500.0}


def test_long_words_of_a_failure_are_cut() -> None:
    failed = outcome_pb2.Failed(kind=outcome_pb2.FAILURE_KIND_ENV, reason="r" * 10_000, message="m" * 1_000_000)
    result = decoded(manager_service_pb2.AttemptEnded(failed=failed))
    assert isinstance(result, events.AttemptFailed)
    assert (len(result.reason), len(result.message)) == (256, 65_536)


def test_an_end_without_a_result_is_a_failure() -> None:
    result = ended("").result
    assert isinstance(result, events.AttemptFailed)
    assert (result.kind, result.reason) == (FailureKind.INFRA, "no_result")


BLOB = 'reference { sha256: "%s" size: 1 }'


@pytest.mark.parametrize(
    ("result", "digests"),
    [
        (f"succeeded {{ env_step {{ stdout {{ {BLOB % 'o'} }} stderr {{ {BLOB % 'e'} }} }} }}", ["o", "e"]),
        (f"succeeded {{ env_step {{ stdout {{ inline: 'x' }} stderr {{ {BLOB % 'e'} }} }} }}", ["e"]),
        (
            f"succeeded {{ env_step {{ downloads {{ content {{ {BLOB % 'd'} }} }} downloads {{ refusal: '-' }} }} }}",
            ["d"],
        ),
        (f"succeeded {{ env_reset {{ set_up {{ stdout {{ {BLOB % 'o'} }} }} }} }}", ["o"]),
        (f"succeeded {{ reward {{ command {{ stderr {{ {BLOB % 'e'} }} }} }} }}", ["e"]),
        (f"succeeded {{ tool_call {{ response {{ {BLOB % 'r'} }} }} }}", ["r"]),
        (f"failed {{ partial {{ env_step {{ stdout {{ {BLOB % 'o'} }} }} }} }}", ["o"]),
        (f"cancelled {{ partial {{ env_step {{ stdout {{ {BLOB % 'o'} }} }} }} }}", ["o"]),
        ("succeeded { generate {} }", []),
        ("succeeded {}", []),
        ("failed {}", []),
        ("", []),
    ],
)
def test_stored_payloads_of_results_are_found(result: str, digests: list[str]) -> None:
    assert references_of(item(f"ended {{ {result} }}").ended) == digests


def filled(command: commands.ManagerCommand) -> manager_service_pb2.SchedulerItem:
    return manager_service_pb2.SchedulerItem.FromString(encode_command(command))


def test_a_dispatch_carries_its_grant_and_its_action() -> None:
    text = (
        'job_id: "j" action_id: "a" trajectory_id: "t" env_step { command { shell: "ls" } } '
        "timeouts { start_to_close { seconds: 9 } heartbeat { seconds: 3 } }"
    )
    spec = text_format.Parse(text, action_pb2.ActionSpec())
    request, _ = decode_action(spec)
    prediction = GrantPrediction(execution_s=1.25, use=0.7)
    dispatch = commands.Dispatch(
        Peer("session"), request, Token(4, 5), 2, "s", {"cpu": 2}, (6, 7), 9.0, "x", prediction
    )
    message = filled(dispatch)
    grant = message.dispatch.grant
    assert message.dispatch.action == spec
    assert (grant.token.epoch, grant.token.sequence, grant.attempt) == (4, 5, 2)
    assert (grant.key.job_id, grant.key.action_id, grant.service, grant.sandbox_id) == ("j", "a", "s", "x")
    assert (dict(grant.resources), list(grant.cores)) == ({"cpu": 2}, [6, 7])
    assert (grant.start_to_close.seconds, grant.heartbeat.seconds) == (9, 3)
    assert grant.body_hash == request.body_hash
    assert (grant.expected_use, grant.expected_execution_s) == (0.7, 1.25)


def test_a_manager_is_told_of_no_span_as_an_older_one_would_refuse_the_action() -> None:
    text = 'job_id: "j" action_id: "a" service: "s" tool_call { method: "m" }'
    bare = text_format.Parse(text, action_pb2.ActionSpec())
    traced = text_format.Parse(f'{text} traceparent: "00-{"1" * 32}-{"2" * 16}-01"', action_pb2.ActionSpec())
    request, _ = decode_action(traced)
    message = filled(commands.Dispatch(Peer("m"), request, Token(1, 1), 1, "s", {}, (), 0.25, ""))
    assert message.dispatch.action == bare
    assert unknown_in(message, 3) is None


def test_a_dispatch_without_a_heartbeat_has_none() -> None:
    text = 'job_id: "j" action_id: "a" service: "s" tool_call { method: "m" }'
    request, _ = decode_action(text_format.Parse(text, action_pb2.ActionSpec()))
    message = filled(commands.Dispatch(Peer("m"), request, Token(1, 1), 1, "s", {}, (), 0.25, ""))
    assert not message.dispatch.grant.HasField("heartbeat")
    assert message.dispatch.grant.expected_use == 0.0
    assert message.dispatch.grant.start_to_close.nanos == 250_000_000


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            commands.ResizeAttempt(Peer("s"), Token(1, 2), {"cpu": 2}, (3, 4)),
            f'resize {{ {TOKEN} resources {{ key: "cpu" value: 2 }} cores: [3, 4] }}',
        ),
        (commands.CancelAttempt(Peer("s"), Token(1, 2), "why"), f'cancel {{ {TOKEN} reason: "why" }}'),
        (
            commands.ReleaseSandbox(Peer("s"), SandboxRef("j", "t", "x")),
            'release_sandbox { sandbox { job_id: "j" trajectory_id: "t" sandbox_id: "x" } }',
        ),
        (commands.DrainManager(Peer("s")), "drain {}"),
        (
            commands.UpdateWeights(Peer("s"), Token(1, 2), Token(1, 2), "policy", 0, b"", b"", 0),
            "update_weights { update { epoch: 1 sequence: 2 } rollout { epoch: 1 sequence: 2 } "
            'service: "policy" plan { source { first {} } mode: UPDATE_MODE_ABORT timeout { seconds: 600 } } }',
        ),
    ],
)
def test_commands_are_items(command: commands.ManagerCommand, text: str) -> None:
    assert filled(command) == text_format.Parse(text, manager_service_pb2.SchedulerItem())
