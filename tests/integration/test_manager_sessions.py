"""The manager runtime against a scripted scheduler: registration, reconnects, acknowledgements, fencing."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import anyio
import grpc
import pytest
from callsheet.managers.noop import NoopExecutor, NoopSettings
from callsheet.managers.runtime import RegistrationRefusedError
from callsheet.v1 import manager_service_pb2
from typing_extensions import override

from tests.support.dispatches import make_dispatch
from tests.support.running_manager import NODE, RunningManager, running_manager
from tests.support.scripted_executor import ScriptedExecutor
from tests.support.scripted_scheduler import ScriptedSession

pytestmark = pytest.mark.anyio

SANDBOX = manager_service_pb2.SandboxState(job_id="j", trajectory_id="t", sandbox_id="s1")


async def test_registration_says_who_it_is() -> None:
    executor = ScriptedExecutor()
    executor.held = [SANDBOX]
    async with running_manager(executor) as manager:
        registration = (await manager.scheduler.next_session()).registration
    assert registration.manager_id == "m"
    assert registration.incarnation
    assert registration.node == NODE
    assert [service.name for service in registration.services] == ["scripted"]
    assert list(registration.sandboxes) == [SANDBOX]
    assert dict(registration.capabilities) == {"executor": "scripted"}


async def test_each_run_is_another_incarnation() -> None:
    incarnations = set()
    for _ in range(2):
        async with running_manager(ScriptedExecutor()) as manager:
            incarnations.add((await manager.scheduler.next_session()).registration.incarnation)
    assert len(incarnations) == 2


async def test_the_answer_to_a_registration_may_bring_dispatches_along(manager: RunningManager) -> None:
    session = await manager.scheduler.next_session(register=False)
    registered = manager_service_pb2.Registered(epoch=1)
    await session.send(
        manager_service_pb2.SchedulerItem(registered=registered),
        manager_service_pb2.SchedulerItem(dispatch=make_dispatch("a", 1)),
    )
    (end,) = await session.wait_ends()
    assert end.HasField("succeeded")


async def test_an_answer_that_is_no_registration_ends_the_stream(manager: RunningManager) -> None:
    await (await manager.scheduler.next_session(register=False)).dispatch(make_dispatch("a", 1))
    assert not (await manager.scheduler.next_session()).registration.running


async def test_every_registration_tells_the_executor_the_cores_it_shares(
    scripted: ScriptedExecutor, manager: RunningManager
) -> None:
    session = await manager.scheduler.next_session(register=False)
    await session.register(shared_cores=[0, 1])
    assert list(await scripted.wait_shared_cores(1)) == [0, 1]
    session.end()
    await (await manager.scheduler.next_session(register=False)).register(epoch=2, shared_cores=[1])
    assert list(await scripted.wait_shared_cores(2)) == [1]


async def test_a_registration_says_how_far_clocks_are(
    manager: RunningManager, scripted: ScriptedExecutor, session: ScriptedSession
) -> None:
    await session.dispatch(make_dispatch("a", 1, script="wait"), make_dispatch("b", 2, script="wait"))
    await scripted.wait_call("run b")
    session.end()
    running = (await manager.scheduler.next_session()).registration.running
    told = {each.key.action_id: each for each in running}
    assert all(each.HasField("execution_s") for each in running)
    assert told["a"].execution_s >= told["b"].execution_s > 0.0


async def test_heartbeats_come_without_being_asked_for(manager: RunningManager) -> None:
    await (await manager.scheduler.next_session(heartbeat_s=0.02)).wait_count("heartbeat", 5)


async def test_a_service_that_changed_is_told_at_once_and_with_every_heartbeat() -> None:
    executor = ScriptedExecutor()
    state = manager_service_pb2.ServiceState(name="scripted", setup_s=12.5, instances=1)
    async with running_manager(executor) as manager:
        session = await manager.scheduler.next_session(heartbeat_s=60.0)
        await session.wait_count("heartbeat", 1)
        executor.states.append(state)
        assert executor.report_states is not None
        executor.report_states()
        told = await session.wait_count("heartbeat", 2)
        assert [list(item.heartbeat.services) for item in told] == [[], [state]]
        session.end()
        told = await (await manager.scheduler.next_session(heartbeat_s=0.02)).wait_count("heartbeat", 3)
    assert [list(item.heartbeat.services) for item in told[1:3]] == [[state], [state]]


async def test_attempts_go_on_while_the_scheduler_is_away(
    manager: RunningManager, scripted: ScriptedExecutor, session: ScriptedSession
) -> None:
    await session.dispatch(make_dispatch("a", 1, script="go", cpu=2))
    await session.wait_count("started", 1)
    await manager.scheduler.stop()
    await manager.scheduler.start()
    again = await manager.scheduler.next_session(epoch=2)
    assert again.registration.incarnation == session.registration.incarnation
    (running,) = again.registration.running
    assert (running.token.sequence, running.key.action_id, running.attempt) == (1, "a", 1)
    assert (dict(running.resources), list(running.cores)) == ({"cpu": 2}, [0, 1])
    assert running.started
    assert running.body_hash == b"hash"
    scripted.go.set()
    (end,) = await again.wait_ends()
    assert end.succeeded.tool_call.response.inline == b"done"
    assert scripted.calls == ["run a"]


async def test_ends_are_sent_again_until_acknowledged(manager: RunningManager, session: ScriptedSession) -> None:
    await session.dispatch(make_dispatch("a", 1), make_dispatch("b", 2))
    ends = await session.wait_ends(2)
    await session.acknowledge(*(end for end in ends if end.key.action_id == "a"))
    # An error drops what was not read yet. The end of the action behind it shows that the acknowledgement was.
    await session.dispatch(make_dispatch("c", 3))
    await session.wait_ends(3)
    session.end(grpc.StatusCode.UNAVAILABLE)
    again = await manager.scheduler.next_session()
    assert not again.registration.running
    kept = await again.wait_ends(2)
    assert sorted(end.key.action_id for end in kept) == ["b", "c"]
    await again.acknowledge(*kept)
    again.end()
    last = await manager.scheduler.next_session(heartbeat_s=0.02)
    await last.wait_count("heartbeat", 3)
    assert not last.of("ended")


async def test_kept_ends_come_before_the_first_heartbeat(
    manager: RunningManager, scripted: ScriptedExecutor, session: ScriptedSession
) -> None:
    await session.dispatch(make_dispatch("a", 1), make_dispatch("b", 2, script="go"))
    await session.wait_ends()
    await scripted.wait_call("run b")
    await manager.scheduler.stop()
    scripted.go.set()
    await manager.scheduler.start()
    again = await manager.scheduler.next_session(heartbeat_s=0.02)
    await again.wait_count("heartbeat", 2)
    names = [item.WhichOneof("item") for item in again.items]
    assert names[:4] == ["registration", "ended", "ended", "heartbeat"]


async def test_a_dispatch_that_comes_again_does_not_run_again(
    scripted: ScriptedExecutor, session: ScriptedSession
) -> None:
    dispatch = make_dispatch("a", 1, script="go")
    # The end of the action behind them shows that all before it have been taken.
    await session.dispatch(dispatch, dispatch, make_dispatch("b", 2))
    await session.wait_ends()
    scripted.go.set()
    (_, end) = await session.wait_ends(2)
    await session.dispatch(dispatch)
    (_, _, repeated) = await session.wait_ends(3)
    assert repeated == end
    await session.acknowledge(end)
    await session.dispatch(dispatch, make_dispatch("c", 3))
    ends = await session.wait_ends(4)
    assert [end.key.action_id for end in ends] == ["b", "a", "a", "c"]
    assert scripted.calls == ["run a", "run b", "run c"]


async def test_stale_tokens_are_refused_as_not_started(scripted: ScriptedExecutor, manager: RunningManager) -> None:
    session = await manager.scheduler.next_session(epoch=3)
    await session.dispatch(make_dispatch("a", 5, epoch=3))
    await session.wait_ends()
    await session.dispatch(make_dispatch("a", 4, epoch=3, attempt=2), make_dispatch("b", 9, epoch=2))
    ends = await session.wait_ends(3)
    assert scripted.calls == ["run a"]
    assert [(end.failed.reason, end.started, end.attempt) for end in ends[1:]] == [
        ("stale_token", False, 2),
        ("stale_token", False, 1),
    ]


async def test_a_newer_token_takes_the_place_of_an_older_attempt(session: ScriptedSession) -> None:
    await session.dispatch(make_dispatch("a", 1, script="wait"))
    await session.wait_count("started", 1)
    await session.dispatch(make_dispatch("a", 2, attempt=2))
    ends = await session.wait_ends(2)
    assert {(end.token.sequence, end.WhichOneof("result")) for end in ends} == {(1, "cancelled"), (2, "succeeded")}


async def test_an_env_step_never_runs_twice_in_one_sandbox() -> None:
    executor = ScriptedExecutor()
    executor.held = [SANDBOX]
    async with running_manager(executor) as manager:
        session = await manager.scheduler.next_session()
        await session.dispatch(make_dispatch("a", 1, kind="env_step", sandbox_id="s1"))
        (end,) = await session.wait_ends()
        await session.acknowledge(end)
        await session.dispatch(make_dispatch("a", 2, attempt=2, kind="env_step", sandbox_id="s1"))
        (_, retold) = await session.wait_ends(2)
    assert executor.calls == ["run a"]
    assert (retold.token.sequence, retold.attempt, retold.succeeded) == (2, 2, end.succeeded)


@pytest.mark.parametrize("kind", ["env_step", "test_suite"])
async def test_a_running_action_of_a_sandbox_is_adopted_by_a_newer_token(
    kind: str, scripted: ScriptedExecutor, session: ScriptedSession
) -> None:
    await session.dispatch(make_dispatch("a", 1, kind=kind, sandbox_id="s1", script="go"))
    await scripted.wait_call("run a")
    await session.dispatch(make_dispatch("a", 2, kind=kind, sandbox_id="s1", script="go", attempt=2, cpu=2))
    await scripted.wait_call("resize a")
    scripted.go.set()
    (end,) = await session.wait_ends()
    started = [item.started.token.sequence for item in session.of("started")]
    assert (end.token.sequence, end.attempt, end.WhichOneof("result")) == (2, 2, "succeeded")
    # The end tells of a start that was not told before.
    assert started in ([], [1], [1, 2])
    assert scripted.calls == ["run a", "resize a"]


async def test_too_many_attempts_are_refused() -> None:
    async with running_manager(ScriptedExecutor(), max_attempts=1) as manager:
        session = await manager.scheduler.next_session()
        await session.dispatch(make_dispatch("a", 1, script="wait"), make_dispatch("b", 2))
        (end,) = await session.wait_ends()
    assert (end.key.action_id, end.failed.reason, end.started) == ("b", "manager_overloaded", False)


async def test_an_action_with_a_field_of_a_later_contract_is_refused_by_name() -> None:
    later = make_dispatch("later", 1)
    later.action.MergeFromString(b"\xfa\x7f\x01x")
    async with running_manager(ScriptedExecutor()) as manager:
        session = await manager.scheduler.next_session()
        await session.dispatch(later, make_dispatch("known", 2))
        ends = {end.key.action_id: end for end in await session.wait_ends(2)}
    refused = ends["later"]
    assert (refused.failed.reason, refused.started) == ("manager_outdated", False)
    assert "field 2047 of ActionSpec" in refused.failed.message
    assert ends["known"].WhichOneof("result") == "succeeded"


async def test_too_many_unacknowledged_ends_stop_new_attempts() -> None:
    async with running_manager(ScriptedExecutor(), max_unacknowledged_ends=2) as manager:
        session = await manager.scheduler.next_session()
        await session.dispatch(*(make_dispatch(f"a{number}", number) for number in (1, 2, 3)))
        ends = await session.wait_ends(3)
        refused = [end for end in ends if not end.started]
        assert [(end.key.action_id, end.failed.reason) for end in refused] == [("a3", "manager_overloaded")]
        await session.acknowledge(*(end for end in ends if end.started))
        await session.dispatch(make_dispatch("a3", 4, attempt=2))
        assert (await session.wait_ends(4))[3].started


async def test_an_invalid_first_registration_ends_the_manager() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await refuse_registration()
    assert caught.group_contains(RegistrationRefusedError, match="INVALID_ARGUMENT: as the test says")


async def refuse_registration() -> None:
    async with running_manager(ScriptedExecutor()) as manager:
        (await manager.scheduler.next_session(register=False)).end(grpc.StatusCode.INVALID_ARGUMENT)
        await anyio.sleep_forever()


async def test_other_refusals_are_tried_again(manager: RunningManager) -> None:
    (await manager.scheduler.next_session(register=False)).end(grpc.StatusCode.FAILED_PRECONDITION)
    (await manager.scheduler.next_session()).end(grpc.StatusCode.INVALID_ARGUMENT)
    await manager.scheduler.next_session()


async def test_a_manager_dials_again_before_its_lease_ends() -> None:
    async with running_manager(ScriptedExecutor(), reconnect_initial_s=600.0, reconnect_max_s=600.0) as manager:
        session = await manager.scheduler.next_session(register=False)
        await session.register(lease_s=0.4)
        await session.wait_count("heartbeat", 1)
        session.end()
        await manager.scheduler.next_session()


async def test_a_scheduler_that_does_not_answer_is_dialled_again() -> None:
    async with running_manager(ScriptedExecutor(), registration_timeout_s=0.05) as manager:
        await manager.scheduler.next_session(register=False)
        # This one is not answered either: an answer may come after it was given up.
        await manager.scheduler.next_session(register=False)


class DiallingExecutor(ScriptedExecutor):
    """Counts how often the manager says what it holds: each time it introduces itself."""

    def __init__(self) -> None:
        super().__init__()
        self.dials = 0

    @override
    def sandboxes(self) -> Sequence[manager_service_pb2.SandboxState]:
        """See Executor."""
        self.calls.append(f"dial {self.dials}")
        self.dials += 1
        self._wake()
        return super().sandboxes()


async def test_a_port_that_says_nothing_at_all_is_dialled_again() -> None:
    executor = DiallingExecutor()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with running_manager(executor, scheduler_address=address, registration_timeout_s=0.05):
            await executor.wait_call("dial 2")


async def test_a_lost_sandbox_is_reported_and_a_released_one_destroyed(
    scripted: ScriptedExecutor, session: ScriptedSession
) -> None:
    scripted.lose(SANDBOX, "its agent died")
    (item,) = await session.wait_count("sandbox_lost", 1)
    assert item.sandbox_lost == manager_service_pb2.SandboxLost(sandbox=SANDBOX, reason="its agent died")
    scripted.control_error = RuntimeError("will not go")
    release = manager_service_pb2.ReleaseSandbox(sandbox=SANDBOX)
    await session.send(manager_service_pb2.SchedulerItem(release_sandbox=release))
    await scripted.wait_call("release s1")
    await session.dispatch(make_dispatch("a", 1))
    await session.wait_ends()


async def test_thousands_of_ends_come_in_batches_the_contract_allows() -> None:
    async with running_manager(NoopExecutor(NoopSettings())) as manager:
        session = await manager.scheduler.next_session()
        for begin in range(1, 3_001, 500):
            await session.dispatch(*(make_dispatch(f"a{n}", n) for n in range(begin, begin + 500)))
        ends = await session.wait_ends(3_000)
    assert len({end.key.action_id for end in ends}) == 3_000
    assert max(session.batches) <= 1024
