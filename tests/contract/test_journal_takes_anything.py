"""No single record may end the service: whatever clients and managers say, both databases take what comes of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from callsheet.scheduler.core.recovery import RequestDecoder, restore
from callsheet.scheduler.core.state.scheduler_state import CoreSettings, SchedulerState
from callsheet.scheduler.core.step import Stepper
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.commands import CoreCommand, Dispatch, Persist
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.service.codec.decode import decode_action, decode_job, decode_trajectory
from callsheet.scheduler.service.codec.decode_buffer import decode_result
from callsheet.scheduler.service.codec.decode_weights import decode_plan
from callsheet.scheduler.service.codec.manager_commands import encode_command
from callsheet.scheduler.service.codec.manager_wire import decode_item, decode_registration
from callsheet.scheduler.service.codec.outcomes import encode_outcome
from callsheet.scheduler.service.codec.requests import decode_request
from callsheet.scheduler.store.journal import Journal
from callsheet.v1 import (
    action_pb2,
    buffer_pb2,
    client_service_pb2,
    job_pb2,
    manager_service_pb2,
    outcome_pb2,
    weights_pb2,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.any_message import any_message
from tests.support.client_items import Item
from tests.support.journals import JournalPlace
from tests.support.peers import Peer
from tests.support.servers import PostgresServer

NOW = 1_700_000_000.0
NODE = manager_service_pb2.NodeSpec(node_id="n", capacity={"memory": 1 << 30})
# Every text that UTF-8 has: NUL, controls, what is no character, and long ones.
TEXT = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["\0", "a\0b", "\x1b[2J", "\ufdd0\uffff\U0010ffff", "'; --", "\\", "é" * 256, "x" * 300]),
)
NAMES = st.one_of(st.just("a"), TEXT)
PAYLOADS: Sequence[Any] = (
    action_pb2.GenerateInput(prompt_token_ids=[1], sampling=action_pb2.SamplingParameters(max_new_tokens=1)),
    action_pb2.ToolCallInput(method="m"),
    action_pb2.EnvResetInput(),
)
_FIELDS = {"GenerateInput": "generate", "ToolCallInput": "tool_call", "EnvResetInput": "env_reset"}
_numbers = itertools.count()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    """A journal of each kind, which all examples write."""
    directory: Path = tmp_path_factory.mktemp("journal") / "data"
    server: PostgresServer | None = None
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres")
    with JournalPlace(directory, server.new_database() if server is not None else None).begun() as journal:
        yield journal


def recovered(journal: Journal) -> SchedulerState:
    """What a restarted scheduler begins with."""
    decoder = RequestDecoder(
        job=lambda spec: decode_job(job_pb2.JobSpec.FromString(spec)),
        trajectory=lambda spec: decode_trajectory(job_pb2.TrajectorySpec.FromString(spec)),
        action=lambda spec: decode_action(action_pb2.ActionSpec.FromString(spec))[0],
        weights=lambda plan: decode_plan(weights_pb2.RolloutPlan.FromString(plan))[0],
        result=lambda encoded: decode_result(buffer_pb2.TrajectoryResult.FromString(encoded))[0],
    )
    state = SchedulerState(journal.epoch, encode_outcome, CoreSettings(closed_actions=5))
    restore(state, journal.load(), decoder, NOW)
    journal.commit([command.record for command in state.take_commands() if isinstance(command, Persist)])
    return state


class Service:
    """The scheduler between its streams and its journal: decodes, steps, commits."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.state = recovered(journal)
        self.stepper = Stepper(self.state, FirstComePlanner(hold_after=5.0).plan)
        self.now = NOW
        self.stream = Peer("manager")
        self.dispatched: list[Dispatch] = []

    def hear(self, event: events.Event) -> None:
        """Takes an event, and commits what comes of it."""
        self.stepper.post([event])
        self._step()

    def wait(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += seconds
        self._step()

    def _step(self) -> None:
        self.now += 0.01
        self._carry_out(self.stepper.step(self.now).commands)

    def _carry_out(self, todo: Sequence[CoreCommand]) -> None:
        records = []
        for command in todo:
            if isinstance(command, Persist):
                records.append(command.record)
            elif isinstance(command, commands.ManagerCommand) and not isinstance(
                command, commands.AcceptManager | commands.RefuseManager | commands.AcknowledgeEnd
            ):
                encode_command(command)
                if isinstance(command, Dispatch):
                    self.dispatched.append(command)
        self.journal.commit(records)

    def ask(self, item: client_service_pb2.ClientItem) -> bool:
        """A client asks for something; False if it is refused before the core sees it."""
        wire = client_service_pb2.ClientItem.FromString(item.SerializeToString())
        try:
            event, _ = decode_request(wire, events.ReplyTo(Peer("client"), 0), None)
        except RefusedError:
            return False
        self.hear(event)
        return True

    def tell(self, item: manager_service_pb2.ManagerItem) -> None:
        """The manager says something."""
        try:
            event = decode_item("m", self.stream, item)
        except RefusedError:
            return
        self.hear(event)

    def register(self, registration: manager_service_pb2.Registration) -> None:
        """The manager comes, or comes again."""
        try:
            joined = decode_registration(self.stream, registration)
        except RefusedError:
            return
        self.hear(joined)
        self.hear(events.ManagerHeartbeat("m"))


def registration(*running: manager_service_pb2.RunningAttempt) -> manager_service_pb2.Registration:
    """One manager that serves all."""
    kinds = [kind for kind in action_pb2.ActionKind.values() if kind]
    hosted = manager_service_pb2.HostedService(name="s", kinds=kinds)
    return manager_service_pb2.Registration(
        manager_id="m", incarnation="i", node=NODE, services=[hosted], running=running
    )


@st.composite
def specs(draw: st.DrawFn, job_id: str) -> action_pb2.ActionSpec:
    """Actions that mostly are accepted, with any text where there may be one."""
    payload = draw(st.sampled_from(PAYLOADS))
    spec = action_pb2.ActionSpec(job_id=job_id, action_id=draw(NAMES), trajectory_id="t", service="s")
    getattr(spec, _FIELDS[type(payload).__name__]).CopyFrom(payload)
    spec.label, spec.task = draw(TEXT), draw(TEXT)
    spec.demand.SetInParent()
    spec.unservable = action_pb2.UNSERVABLE_WAIT
    if draw(st.booleans()):
        spec.retry.max_attempts = draw(st.sampled_from([1, 2, (1 << 31) - 1]))
    return spec


@st.composite
def ends(draw: st.DrawFn, grant: Dispatch) -> manager_service_pb2.AttemptEnded:
    """Ends of an attempt that say anything about all but whose end it is."""
    ended = draw(any_message(manager_service_pb2.AttemptEnded))
    match draw(st.integers(0, 3)):
        case 0:
            ended.failed.CopyFrom(draw(any_message(outcome_pb2.Failed)))
            ended.failed.reason, ended.failed.message = draw(TEXT), draw(TEXT)
        case 1:
            ended.succeeded.env_reset.sandbox_id = draw(TEXT)
        case 2:
            ended.usage.CopyFrom(draw(any_message(outcome_pb2.Usage)))
        case _:
            pass
    ended.token.epoch, ended.token.sequence = grant.token
    ended.key.job_id, ended.key.action_id = grant.request.key
    ended.body_hash = grant.request.body_hash
    return ended


@st.composite
def adopted(draw: st.DrawFn, spec: action_pb2.ActionSpec) -> manager_service_pb2.RunningAttempt:
    """An attempt that a manager says to run since an earlier epoch, with any numbers."""
    running = draw(any_message(manager_service_pb2.RunningAttempt))
    running.key.job_id, running.key.action_id = spec.job_id, spec.action_id
    running.token.epoch = draw(st.sampled_from([0, -1, -(1 << 63), (1 << 63) - 1]))
    running.attempt = draw(st.sampled_from([1, (1 << 31) - 1]))
    running.body_hash = decode_action(spec)[0].body_hash
    return running


@st.composite
def words(draw: st.DrawFn, job_id: str) -> client_service_pb2.ClientItem:
    """What else a client may ask for."""
    item = draw(any_message(client_service_pb2.ClientItem))
    name = draw(st.sampled_from(["cancel", "cancel_work", "publish_policy_version", "close_trajectory", ""]))
    if name == "cancel":
        item.cancel.key.job_id, item.cancel.key.action_id = job_id, draw(NAMES)
        item.cancel.reason = draw(TEXT)
    elif name:
        getattr(item, name).job_id = job_id
    if name == "cancel_work":
        item.cancel_work.trajectory_id, item.cancel_work.group_id = draw(st.sampled_from(["", "t"])), ""
        item.cancel_work.reason = draw(TEXT)
    if name == "publish_policy_version":
        item.publish_policy_version.version, item.publish_policy_version.source = (
            draw(st.integers(0, (1 << 63) - 1)),
            draw(st.sampled_from(["", "/weights"])),
        )
    if name == "close_trajectory":
        item.close_trajectory.trajectory_id = draw(NAMES)
    return item


@st.composite
def jobs(draw: st.DrawFn) -> job_pb2.JobSpec:
    """A job of any id that no other example has, and with any of the numbers that a job may have."""
    job = job_pb2.JobSpec(job_id=f"{next(_numbers)}{draw(TEXT)}", detached=draw(st.booleans()))
    job.share = draw(st.sampled_from([0.0, 1e-300, 1e6]))
    job.max_actions = draw(st.sampled_from([0, (1 << 63) - 1]))
    return job


@given(st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_is_said_can_be_committed(journal: Journal, data: st.DataObject) -> None:
    service = Service(journal)
    # What an example left that was broken off would change what this one draws.
    for left in list(service.state.jobs):
        service.ask(Item(close_job=left))
    job = data.draw(jobs())
    if not service.ask(Item(open_job=job)):
        job.job_id = f"{next(_numbers)}"
        assert service.ask(Item(open_job=job))
    opened = job_pb2.TrajectorySpec(job_id=job.job_id, trajectory_id="t")
    service.ask(Item(open_trajectory=opened))
    service.register(registration())
    for _ in range(data.draw(st.integers(1, 4))):
        spec = data.draw(specs(job.job_id))
        accepted = service.ask(Item(submit=spec))
        if accepted and data.draw(st.integers(0, 4)) == 0:
            service.register(registration(data.draw(adopted(spec))))
        service.ask(data.draw(words(job.job_id)))
        for grant in service.dispatched:
            service.tell(manager_service_pb2.ManagerItem(ended=data.draw(ends(grant))))
        service.dispatched.clear()
        service.tell(data.draw(any_message(manager_service_pb2.ManagerItem)))
        service.wait(data.draw(st.sampled_from([0.1, 50.0])))
    recovered(journal)
    service.ask(Item(close_job=job.job_id))
    service.wait(1e6)
