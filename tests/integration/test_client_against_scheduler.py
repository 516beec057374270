"""The client against a real scheduler with a real no-op manager, each in its own process."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
import pytest
from callsheet.client import (
    AlreadyExistsError,
    Cancelled,
    Client,
    ClientOptions,
    Demand,
    FailedPreconditionError,
    Generate,
    InvalidArgumentError,
    Job,
    NotFoundError,
    Opening,
    SandboxFile,
    Succeeded,
    Timeouts,
    Unservable,
)
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ActionState, Explanation
from callsheet.client.session import long_waits
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings

from tests.support.cutting_proxy import cutting_proxy
from tests.support.expected import expect
from tests.support.waiting import until, until_so

_OPTIONS = ClientOptions(backoff_initial_s=0.01, backoff_max_s=0.1)
_LONG_S = 60.0
_LARGE = bytes(range(256)) * 8_000


@dataclass(frozen=True)
class SchedulerUnderTest:
    """A running scheduler.

    Attributes:
        address: "host:port".
        service: Name of the service that serves every kind; an attempt takes its action's expected duration.
    """

    address: str
    service: str


@pytest.fixture
async def client(scheduler: SchedulerUnderTest) -> AsyncIterator[Client]:
    """A client of the scheduler."""
    async with Client(scheduler.address, _OPTIONS) as client:
        yield client


@pytest.fixture
async def job(client: Client) -> AsyncIterator[Job]:
    """A job of its own for each test."""
    async with await client.open_job(f"job-{uuid.uuid4().hex}") as job:
        yield job


async def _until_unheld(admin: AdminClient, job_id: str) -> None:
    """Waits until the scheduler has seen that a job's client is gone."""
    await until_so(admin.jobs, lambda it: not any(each.sessions for each in it if each.job_id == job_id))


class ClientSuite:
    """The tests."""

    async def test_open_actions_are_told_with_what_they_wait_for(
        self, client: Client, job: Job, scheduler: SchedulerUnderTest
    ) -> None:
        running = await job.submit(Generate([1], model=scheduler.service), action_id="a/1", expected_duration_s=_LONG_S)
        waiting = await job.submit(Generate([1], model="nobody"), action_id="b", unservable=Unservable.WAIT)
        await waiting.accepted()
        async with AdminClient(scheduler.address) as admin:
            await running.accepted()
            await until_so(lambda: admin.explain(job.job_id, "a/1"), lambda it: it.state is ActionState.RUNNING)
            found = await admin.actions(job.job_id)
            oldest = await admin.actions(job.job_id, at_most=1)
            with pytest.raises(NotFoundError):
                await admin.actions("never opened")
            with pytest.raises(InvalidArgumentError, match="page_size"):
                await admin.actions(job.job_id, at_most=1_001)
        assert [(each.action_id, each.state) for each in found.actions] == [
            ("a/1", ActionState.RUNNING),
            ("b", ActionState.QUEUED),
        ]
        assert "nobody" in found.actions[1].explanation
        assert (oldest.open, [each.action_id for each in oldest.actions]) == (2, ["a/1"])
        for handle in (running, waiting):
            await handle.cancel()

    async def test_a_job_without_a_client_is_told_of_and_closed_if_asked(
        self, scheduler: SchedulerUnderTest, caplog: pytest.LogCaptureFixture
    ) -> None:
        job_id = f"job-{uuid.uuid4().hex}"
        async with Client(scheduler.address, _OPTIONS) as crashed:
            await (await crashed.open_job(job_id)).trajectory("t").open()
            async with Client(scheduler.address, _OPTIONS) as other:
                await other.open_job(job_id)
                assert "joined" not in caplog.text, "its client lives"
            async with Client(scheduler.address, _OPTIONS) as other:
                with pytest.raises(AlreadyExistsError, match="a client holds it"):
                    await other.open_job(job_id, new=True)
        async with Client(scheduler.address, _OPTIONS) as second, AdminClient(scheduler.address) as admin:
            await _until_unheld(admin, job_id)
            job = await second.open_job(job_id)
            assert f"joined a job that no other client holds job={job_id} open_trajectories=1" in caplog.text
            caplog.clear()
            await second.open_job(job_id)
            assert "joined" not in caplog.text, "it is its own by now"
            assert [each.spec.trajectory_id for each in await job.trajectories()] == ["t"]
        async with Client(scheduler.address, _OPTIONS) as third, AdminClient(scheduler.address) as admin:
            await _until_unheld(admin, job_id)
            async with await third.open_job(job_id, new=True) as job:
                assert job.opening is Opening.CREATED
                assert await job.trajectories() == []

    async def test_an_action_that_waits_is_told_in_the_log(
        self, job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(long_waits, "_LOOK_S", 0.02)
        async with Client(job.client.target, _OPTIONS) as other:
            submitted = await other.job(job.job_id).submit(Generate([1], model="nobody"), unservable=Unservable.WAIT)
            await until(lambda: "action waits" in caplog.text)
            assert f"action waits action={job.job_id}/{submitted.action_id} state=queued why=" in caplog.text
            assert "nobody" in caplog.text
            await submitted.cancel()

    async def test_another_client_attaches_to_a_running_action(self, job: Job, scheduler: SchedulerUnderTest) -> None:
        action = Generate([1], model=scheduler.service)
        spans = (f"00-{digit * 32}-{digit * 16}-01" for digit in "123")
        first = await job.submit(action, action_id="a", expected_duration_s=0.3, traceparent=next(spans))
        await first.accepted()
        same = await job.submit(action, action_id="a", expected_duration_s=0.3, traceparent=next(spans))
        async with Client(scheduler.address) as other:
            third = other.job(job.job_id)
            second = await third.submit(action, action_id="a", expected_duration_s=0.3, traceparent=next(spans))
            assert await second.outcome() == await first.outcome() == await same.outcome()

    async def test_a_trajectory_that_is_open_has_the_group_that_it_was_opened_with(self, job: Job) -> None:
        await job.trajectory("t").open()
        with pytest.raises(AlreadyExistsError):
            await job.group("g", size=2).trajectory("t").open()

    async def test_an_action_that_nobody_can_serve(self, job: Job) -> None:
        with pytest.raises(FailedPreconditionError):
            await job.tool_call("nobody hosts this", "method", unservable=Unservable.REFUSE)
        waiting = await job.tool_call(
            "nobody hosts this",
            "method",
            unservable=Unservable.WAIT,
            timeouts=Timeouts(schedule_to_start_s=0.1),
        )
        assert type(waiting).__name__ == "Expired"

    async def test_payloads_outlive_the_jobs_that_used_them(self, client: Client) -> None:
        for _ in range(3):
            async with await client.open_job(f"job-{uuid.uuid4().hex}") as job, job.trajectory("t") as trajectory:
                for _ in range(2):
                    expect(Succeeded, await trajectory.env_reset(files=[SandboxFile("large", _LARGE)]))

    async def test_connections_cut_under_load_lose_and_repeat_nothing(
        self, job: Job, scheduler: SchedulerUnderTest
    ) -> None:
        outcomes: dict[str, object] = {}
        cuts = {20: anyio.Event(), 60: anyio.Event(), 120: anyio.Event()}
        async with cutting_proxy(scheduler.address) as proxy, Client(proxy.address, _OPTIONS) as client:
            through = client.job(job.job_id)

            async def rollout(number: int) -> None:
                async with through.trajectory(f"t-{number}") as trajectory:
                    for step in range(10):
                        action_id = f"{number}-{step}"
                        assert action_id not in outcomes
                        outcomes[action_id] = await trajectory.generate(
                            [step + 1], model=scheduler.service, action_id=action_id, expected_duration_s=0.01
                        )
                        if len(outcomes) in cuts:
                            cuts[len(outcomes)].set()

            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(rollout, number)
                for reached in cuts.values():
                    await reached.wait()
                    proxy.cut()
            assert proxy.connections >= 3
        assert len(outcomes) == 200
        assert all(isinstance(outcome, Succeeded) for outcome in outcomes.values())

    async def test_what_tools_see(self, job: Job, scheduler: SchedulerUnderTest) -> None:
        handle = await job.submit(
            Generate([1], model=scheduler.service), action_id="a", expected_duration_s=_LONG_S, demand=Demand(cpu=1)
        )
        await handle.accepted()
        async with AdminClient(scheduler.address) as admin:
            status = await admin.status()
            assert job.job_id in {each.job_id for each in status.jobs}
            assert any(service.name == scheduler.service for each in status.managers for service in each.services)
            assert await admin.outcome(job.job_id, "a") is None
            with anyio.move_on_after(0.01) as scope:
                await admin.outcome(job.job_id, "a", wait_s=_LONG_S)
            assert scope.cancelled_caught
            assert (await _explain_once_running(admin, job.job_id, "a")).story
            await admin.cancel(job.job_id, "a", "by a tool")
            assert isinstance(await admin.outcome(job.job_id, "a", wait_s=_LONG_S), Cancelled)
            with pytest.raises(NotFoundError):
                await admin.explain(job.job_id, "never submitted")
            with pytest.raises(NotFoundError):
                await admin.drain("never registered")
            with pytest.raises(InvalidArgumentError):
                await admin.outcome(job.job_id, "a", wait_s=601)


async def _explain_once_running(admin: AdminClient, job_id: str, action_id: str) -> Explanation:
    return await until_so(
        lambda: admin.explain(job_id, action_id), lambda explanation: explanation.state is ActionState.RUNNING
    )


@pytest.fixture(scope="module")
async def scheduler(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SchedulerUnderTest]:
    settings = StackSettings(tmp_path_factory.mktemp("scheduler"), managers=(Role.NOOP,))
    async with local_stack(settings) as stack:
        yield SchedulerUnderTest(stack.address, "noop")


class TestAgainstScheduler(ClientSuite):
    """The whole suite."""
