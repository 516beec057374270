"""The scheduler's side of the client contract in memory, with faults on demand.

It keeps the contract's promises (idempotent items, one outcome per action, results before outcomes) and breaks what a
client must survive: streams, delays, repetition, refusals. It schedules nothing: an action ends when `decide` says how.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from callsheet.client import ClientOptions
from callsheet.v1 import (
    action_pb2,
    client_service_pb2,
    outcome_pb2,
)
from callsheet.v1.contract import CONTRACT

from tests.support.faulty_jobs import Jobs, Key, Status, not_found, put_once, refusal

FAST = ClientOptions(backoff_initial_s=0.01, backoff_max_s=0.05, give_up_after_s=30.0)
"""For clients of such a service: its faults are over at once."""


def succeed(spec: action_pb2.ActionSpec) -> outcome_pb2.Outcome:
    """Returns the outcome that an action has by default: a success whose result echoes something of it."""
    outcome = outcome_pb2.Outcome(attempts=1, manager_id="in-memory")
    kind = spec.WhichOneof("payload")
    if kind == "generate":
        outcome.succeeded.generate.token_ids.extend(reversed(spec.generate.prompt_token_ids))
    elif kind == "env_reset":
        outcome.succeeded.env_reset.sandbox_id = f"sandbox of {spec.trajectory_id}"
    elif kind == "env_step":
        outcome.succeeded.env_step.stdout.inline = spec.env_step.command.shell.encode()
    elif kind == "tool_call":
        outcome.succeeded.tool_call.response.CopyFrom(spec.tool_call.arguments)
    else:
        outcome.succeeded.reward.score = 1.0
    return outcome


def never(spec: action_pb2.ActionSpec) -> outcome_pb2.Outcome | None:
    """For `decide`: no action ends by itself."""
    return None


class FaultyClientService:
    """State, scripts and faults of the service.

    Attributes:
        items: Every item that arrived, in order, repeated ones included.
        batches: Items of each request that arrived.
        streams: How many sessions were opened.
        actions: Accepted actions.
        state: Jobs, trajectories and groups.
        contract: The state of the contract that it says it speaks.
        pages: The most that a listing gives at once.
        started: How often each action began: once, whatever is repeated.
        decide: Makes the outcome of an action; None leaves it open until `end_action`.
        refuse: Makes the refusal of an item; None accepts it.
        break_after_items: Ends the stream before the item of this number (counted from 1 over all streams) is handled.
        break_before_results: Ends the stream after the item of this number is handled, before its result is sent.
        repeat_outcomes: Sends each outcome twice.
        answering: While cleared, nothing is sent.
        reading: While cleared, nothing is read.
        storing: While cleared, uploads wait at their end.
        payloads: Stored payloads by SHA-256.
        puts: SHA-256 of each upload, in order.
    """

    def __init__(self) -> None:
        self.items: list[client_service_pb2.ClientItem] = []
        self.batches: list[int] = []
        self.streams = 0
        self.actions: dict[Key, action_pb2.ActionSpec] = {}
        self.state = Jobs(self._cancel_actions)
        self.contract = CONTRACT
        self.pages = 1000
        self.versions: list[tuple[str, int]] = []
        self.started: Counter[Key] = Counter()
        self.outcomes: dict[Key, outcome_pb2.Outcome] = {}
        self.decide: Callable[[action_pb2.ActionSpec], outcome_pb2.Outcome | None] = succeed
        self.refuse: Callable[[client_service_pb2.ClientItem], Status | None] = lambda item: None
        self.break_after_items: set[int] = set()
        self.break_before_results: set[int] = set()
        self.break_code = grpc.StatusCode.UNAVAILABLE
        self.repeat_outcomes = False
        self.answering = asyncio.Event()
        self.answering.set()
        self.reading = asyncio.Event()
        self.reading.set()
        self.storing = asyncio.Event()
        self.storing.set()
        self.payloads: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.changed = asyncio.Condition()
        self._sessions: list[_Session] = []

    def kinds(self) -> list[str | None]:
        """What each received item was, in their order."""
        return [item.WhichOneof("item") for item in self.items]

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Returns once a condition on this service holds."""
        async with self.changed:
            await self.changed.wait_for(condition)

    async def end_action(self, key: Key, outcome: outcome_pb2.Outcome | None = None) -> None:
        """Ends an open action and tells every session attached to it."""
        self._end(key, outcome or succeed(self.actions[key]))
        await self._notify()

    async def break_streams(self) -> None:
        """Ends all streams that are open."""
        for session in self._sessions:
            session.broken.set()
        await self._notify()

    async def serve_session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """One ClientSession."""
        self.streams += 1
        session = _Session()
        self._sessions.append(session)
        reader = asyncio.create_task(self._read(requests, session))
        try:
            while True:
                await session.something.wait()
                await self.answering.wait()
                if session.broken.is_set():
                    await context.abort(self.break_code, "broken on purpose")
                session.something.clear()
                if response := session.take(twice=self.repeat_outcomes):
                    yield response
        finally:
            reader.cancel()
            self._sessions.remove(session)

    async def _read(self, requests: AsyncIterator[Any], session: _Session) -> None:
        async for request in requests:
            await self.reading.wait()
            self.batches.append(len(request.items))
            for item in request.items:
                self.items.append(item)
                number = len(self.items)
                if number in self.break_after_items:
                    session.broken.set()
                    break
                self._handle(item, session)
                if number in self.break_before_results:
                    session.broken.set()
                    break
            session.something.set()
            await self._notify()
            if session.broken.is_set():
                return

    def _handle(self, item: client_service_pb2.ClientItem, session: _Session) -> None:
        said = self.refuse(item) or self._apply(item, session)
        if said is None:
            session.accepted.append(item.sequence)
        elif isinstance(said, client_service_pb2.ItemOpened):
            said.sequence = item.sequence
            session.opened.append(said)
        else:
            session.results.append(client_service_pb2.ItemResult(sequence=item.sequence, status=said))

    def _apply(
        self, item: client_service_pb2.ClientItem, session: _Session
    ) -> Status | client_service_pb2.ItemOpened | None:
        state = self.state
        match item.WhichOneof("item"):
            case "submit":
                return self._submit(item.submit, session)
            case "cancel":
                return self._cancel(item.cancel)
            case "open_job":
                return state.open_job(item.open_job)
            case "close_job":
                return state.close_job(item.close_job)
            case "hold_job":
                return state.hold(item.hold_job)
            case "open_trajectory":
                return state.open_trajectory(item.open_trajectory)
            case "close_trajectory":
                closing = item.close_trajectory
                return state.close_trajectory(closing.job_id, closing.trajectory_id, closing.end)
            case "cancel_work":
                return state.cancel_work(item.cancel_work)
        return self._publish(item.publish_policy_version)

    def _submit(self, spec: action_pb2.ActionSpec, session: _Session) -> Status | None:
        key = (spec.job_id, spec.action_id)
        for reference in _references(spec):
            if reference not in self.payloads:
                return refusal(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    field="env_reset.files[0].content.reference",
                    value=reference,
                    rule="a payload is put before it is used",
                )
        if refused := self._no_place(spec) or put_once(self.actions, key, spec):
            return refused
        session.attached.add(key)
        if key not in self.started:
            self.started[key] += 1
            if (outcome := self.decide(spec)) is not None:
                self._end(key, outcome)
        elif key in self.outcomes:
            session.outcomes.append(self.outcomes[key])
        return None

    def _cancel(self, request: client_service_pb2.CancelActionRequest) -> Status | None:
        key = (request.key.job_id, request.key.action_id)
        if key not in self.actions:
            return not_found("action_id", key[1])
        if key not in self.outcomes:
            self._end(key, outcome_pb2.Outcome(cancelled=outcome_pb2.Cancelled(reason=request.reason)))
        return None

    def _no_place(self, spec: action_pb2.ActionSpec) -> Status | None:
        if spec.job_id not in self.state.jobs:
            return not_found("job_id", spec.job_id)
        key = (spec.job_id, spec.trajectory_id)
        if not spec.trajectory_id or (spec.job_id, spec.action_id) in self.actions:
            return None
        if key not in self.state.trajectories:
            return not_found("trajectory_id", spec.trajectory_id)
        if key in self.state.closed:
            return refusal(
                grpc.StatusCode.FAILED_PRECONDITION, field="trajectory_id", value=key[1], rule="it was closed"
            )
        return None

    def _cancel_actions(self, job_id: str, trajectory_id: str, reason: str) -> None:
        for key, spec in self.actions.items():
            if key[0] == job_id and trajectory_id in {"", spec.trajectory_id} and key not in self.outcomes:
                self._end(key, outcome_pb2.Outcome(cancelled=outcome_pb2.Cancelled(reason=reason)))

    def _publish(self, request: client_service_pb2.PublishPolicyVersionRequest) -> Status | None:
        if request.source:
            return refusal(
                grpc.StatusCode.UNIMPLEMENTED, field="source", value=request.source, rule="this is not built yet"
            )
        if self.versions and request.version < self.versions[-1][1]:
            return refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                field="version",
                value=str(request.version),
                rule="never goes back",
            )
        self.versions.append((request.job_id, request.version))
        return None

    def _end(self, key: Key, outcome: outcome_pb2.Outcome) -> None:
        outcome.key.job_id, outcome.key.action_id = key
        self.outcomes[key] = outcome
        for session in self._sessions:
            if key in session.attached:
                session.outcomes.append(outcome)
                session.something.set()

    async def _notify(self) -> None:
        for session in self._sessions:
            session.something.set()
        async with self.changed:
            self.changed.notify_all()


class _Session:
    """What one stream still has to send."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.opened: list[client_service_pb2.ItemOpened] = []
        self.results: list[client_service_pb2.ItemResult] = []
        self.outcomes: list[outcome_pb2.Outcome] = []
        self.attached: set[Key] = set()
        self.something = asyncio.Event()
        self.broken = asyncio.Event()

    def take(self, *, twice: bool) -> client_service_pb2.ClientSessionResponse | None:
        if not (self.accepted or self.opened or self.results or self.outcomes):
            return None
        response = client_service_pb2.ClientSessionResponse(
            accepted=self.accepted,
            opened=self.opened,
            results=self.results,
            outcomes=self.outcomes * (2 if twice else 1),
        )
        self.accepted, self.opened, self.results, self.outcomes = [], [], [], []
        return response


def _references(spec: action_pb2.ActionSpec) -> list[str]:
    blobs = [file.content for file in spec.env_reset.files] + [spec.tool_call.arguments]
    return [blob.reference.sha256 for blob in blobs if blob.HasField("reference")]
