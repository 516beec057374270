"""One call from its request to its reply: prepared under its trajectory's lock, generated without, committed under it.

A call is kept with the id of its action before that is submitted. A marked retry of it waits for the action, is given
its reply again, or after a restart attaches to the same action at the scheduler.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

import anyio
import anyio.abc
import anyio.to_thread
import structlog
from callsheet.client import (
    ActionHandle,
    CallsheetError,
    Cancelled,
    Client,
    Expired,
    Failed,
    FailureKind,
    FinishReason,
    Generate,
    GenerateResult,
    NotFoundError,
    Outcome,
    RefusedError,
    Succeeded,
)
from callsheet.gateway.chat import BadRequestError, ChatReply, ChatRequest
from callsheet.gateway.conversations.conversation import Conversation, HistoryNotReplayedError
from callsheet.gateway.conversations.turns import Prepared
from callsheet.gateway.server.call_store import CallRow, CallState, CallStore
from callsheet.gateway.server.callers import Caller
from callsheet.gateway.server.faults import (
    BAD_REQUEST,
    TOO_MANY,
    UNAVAILABLE,
    NoReplyError,
    aborted,
    of_error,
    of_outcome,
)
from callsheet.gateway.server.live_trajectories import CallEntry, LiveTrajectories, LiveTrajectory, RunningCall
from callsheet.gateway.server.models import ServedModels
from callsheet.gateway.server.sampling import (
    generated_of,
    reply_from_json,
    reply_to_json,
    reply_tokens,
    sampling_of,
)
from callsheet.gateway.server.settings import GatewaySettings
from sqlalchemy.exc import SQLAlchemyError

_BUSY_S: Final = 1.0
_BROKEN: Final = 500
_PREFIX: Final = "gateway-"
_LABEL: Final = "gateway"
_CALLER_GONE: Final = "its caller is gone"
_log = structlog.get_logger(__name__)


class Calls:
    """Makes replies for calls."""

    def __init__(
        self,
        client: Client,
        store: CallStore,
        live: LiveTrajectories,
        models: ServedModels,
        *,
        settings: GatewaySettings,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        """Args:
        client: Of the scheduler.
        store: Where call records are kept.
        live: Conversations.
        models: What is served.
        settings: Of the gateway.
        tasks: Where calls run; they outlive the requests that asked for them.
        """
        self._client = client
        self._store = store
        self._live = live
        self._renderer = live.renderer
        self._models = models
        self._settings = settings
        self._tasks = tasks
        self._in_flight = 0

    async def reply(self, caller: Caller, request: ChatRequest, digest: str, *, is_retry: bool) -> ChatReply:
        """Returns the reply to a call. Cancelling this leaves the call to others who wait, or gives it up.

        Args:
            caller: Who calls.
            request: What is asked.
            digest: Of the request's path and body.
            is_retry: Whether the client says that it has sent this before.

        Raises:
            NoReplyError: There is none.
        """
        live = await self._live.get(caller.job_id, caller.trajectory_id)
        try:
            async with live.lock:
                found = await self._find_or_begin(live, caller, request, digest, is_retry=is_retry)
            return found if isinstance(found, ChatReply) else await self._wait(found)
        finally:
            self._live.release(live)

    async def count_tokens(self, caller: Caller, request: ChatRequest) -> int:
        """Returns how many tokens the prompt of a call would have, and keeps nothing of it.

        Raises:
            NoReplyError: The call breaks a rule.
        """
        live = await self._live.get(caller.job_id, caller.trajectory_id)
        try:
            async with live.lock:
                conversation = live.conversation if live.trajectory_id else self._live.new_conversation()
                return len((await _prepare(conversation, request)).token_ids)
        finally:
            self._live.release(live)

    async def _find_or_begin(
        self, live: LiveTrajectory, caller: Caller, request: ChatRequest, digest: str, *, is_retry: bool
    ) -> ChatReply | RunningCall:
        entry = live.calls.get(digest)
        if is_retry and entry is not None:
            if entry.running is not None:
                return entry.running
            if entry.state is CallState.DONE:
                return reply_from_json(await self._store.reply(live.job_id, live.trajectory_id, entry.row.number))
        self._check_room(live)
        if is_retry and entry is not None and entry.state is CallState.BEGUN:
            # Of a gateway that ended meanwhile. Its prompt is that of the turns that there were.
            past = await self._past(live, entry.row.turns_before)
            prepared = await _prepare(past, request)
            return self._start(live, caller, RunningCall(entry, prepared, live.conversation))
        conversation = live.conversation if live.trajectory_id else self._live.new_conversation()
        prepared = await _prepare(conversation, request)
        row = self._new_row(live, digest, 1 if entry is None else entry.row.ordinal + 1, len(conversation.turns))
        await self._store.begin(live.job_id, live.trajectory_id, row, time.time())
        entry = CallEntry(row, CallState.BEGUN)
        live.remember(entry)
        return self._start(live, caller, RunningCall(entry, prepared, conversation))

    def _check_room(self, live: LiveTrajectory) -> None:
        """Raises NoReplyError where as many calls are under way as may be."""
        bounds = [(self._in_flight, self._settings.max_calls, "the gateway")]
        if live.trajectory_id:
            bounds.append((live.in_flight, self._settings.max_trajectory_calls, "the trajectory"))
        for count, most, whose in bounds:
            if count >= most:
                said = f"{whose} has {count} calls under way, and no more at once"
                raise NoReplyError(TOO_MANY, said, retry_after_s=_BUSY_S)

    async def _past(self, live: LiveTrajectory, turns: int) -> Conversation:
        if not live.trajectory_id:
            return self._live.new_conversation()
        records = (await self._store.load(live.job_id, live.trajectory_id)).records[:turns]
        return Conversation.restore(self._renderer, records)

    def _new_row(self, live: LiveTrajectory, digest: str, ordinal: int, turns: int) -> CallRow:
        # The row is committed before the action is submitted, so that a retry finds the id again.
        action_id = f"{_PREFIX}{secrets.token_hex(16)}"
        return CallRow(live.next_number, digest, ordinal, action_id, turns, CallState.BEGUN)

    def _start(self, live: LiveTrajectory, caller: Caller, running: RunningCall) -> RunningCall:
        running.entry.running = running
        live.in_flight += 1
        self._in_flight += 1
        self._tasks.start_soon(self._run, live, caller, running)
        return running

    async def _wait(self, running: RunningCall) -> ChatReply:
        running.waiters += 1
        try:
            await running.ended.wait()
        finally:
            running.waiters -= 1
            if not running.waiters and not running.ended.is_set():
                self._tasks.start_soon(self._give_up_later, running)
        if running.reply is not None:
            return running.reply
        fault = running.fault or NoReplyError(UNAVAILABLE, "the gateway is ending", retry_after_s=_BUSY_S)
        raise fault.with_traceback(None)

    async def _give_up_later(self, running: RunningCall) -> None:
        """Cancels a call that nobody has asked for again within the grace."""
        with anyio.move_on_after(self._settings.disconnect_grace_s):
            await running.ended.wait()
        if not running.waiters and not running.ended.is_set():
            running.given_up = True
            running.scope.cancel()

    async def _run(self, live: LiveTrajectory, caller: Caller, running: RunningCall) -> None:
        try:
            with running.scope:
                await self._perform(live, caller, running)
        except NoReplyError as fault:
            running.fault = fault
            _log.info("call_failed", **_ids(live, running), status=fault.status, reason=str(fault))
        except SQLAlchemyError:
            # What is not kept is not answered: the process ends, and what was kept is read again.
            raise
        except Exception:
            _log.exception("call_broke", **_ids(live, running))
            await self._note_failure(live, running)
            running.fault = NoReplyError(_BROKEN, "the gateway failed")
        finally:
            running.entry.running = None
            live.in_flight -= 1
            self._in_flight -= 1
            running.ended.set()

    async def _perform(self, live: LiveTrajectory, caller: Caller, running: RunningCall) -> None:
        try:
            result = await self._generate(live, caller, running)
        except NoReplyError:
            await self._note_failure(live, running)
            raise
        except anyio.get_cancelled_exc_class():
            if running.given_up:
                await self._note_failure(live, running)
                _log.info("call_given_up", **_ids(live, running), reason=_CALLER_GONE)
            raise
        except CallsheetError as error:
            # Nobody knows what became of the action: a retry attaches to it.
            raise of_error(error) from error
        with anyio.CancelScope(shield=True):
            async with live.lock:
                await self._commit(live, running, result)

    async def _note_failure(self, live: LiveTrajectory, running: RunningCall) -> None:
        running.entry.state = CallState.FAILED
        await self._store.fail(live.job_id, live.trajectory_id, running.entry.row.number)

    async def _generate(self, live: LiveTrajectory, caller: Caller, running: RunningCall) -> GenerateResult:
        """Returns what an engine sampled.

        Raises:
            NoReplyError: It did not, or the scheduler refused it.
            CallsheetError: What became of it is not known.
        """
        prepared = running.prepared
        sampling = sampling_of(
            prepared.request.sampling,
            caller.sampling,
            stop_token_ids=self._renderer.stop_token_ids,
            prompt_tokens=len(prepared.token_ids),
            context_length=await self._models.context_length(),
            default_max_tokens=self._settings.default_max_tokens,
        )
        action = Generate(prepared.token_ids, sampling, self._settings.service)
        try:
            outcome = await self._outcome(live, caller, running, action)
        except RefusedError as error:
            raise of_error(error) from error
        return _result_of(outcome)

    async def _outcome(
        self, live: LiveTrajectory, caller: Caller, running: RunningCall, action: Generate
    ) -> Outcome[GenerateResult]:
        job = self._client.job(live.job_id)
        trajectory = job.trajectory(live.trajectory_id) if live.trajectory_id else None
        action_id = running.entry.row.action_id
        for may_open in (caller.is_trainer and trajectory is not None, False):
            handle = await (trajectory or job).submit(action, action_id=action_id, label=_LABEL)
            try:
                return await _outcome_of(handle, running)
            except NotFoundError as error:
                if not may_open or trajectory is None or error.field != "trajectory_id":
                    raise
                # A trainer's token names a trajectory by its first call; a closed one is refused again.
                await trajectory.open()
        raise AssertionError("the second try returns or raises")

    async def _commit(self, live: LiveTrajectory, running: RunningCall, result: GenerateResult) -> None:
        entry, request, generated = running.entry, running.prepared.request, generated_of(result)
        committed = running.conversation.commit(running.prepared, generated)
        reply = ChatReply(
            call_id=entry.row.action_id.removeprefix(_PREFIX),
            created_s=int(time.time()),
            model=request.model or self._settings.service,
            message=committed.message,
            end=committed.end,
            prompt_tokens=len(running.prepared.token_ids),
            completion_tokens=len(generated.token_ids),
            cached_tokens=result.cached_tokens,
            tokens=reply_tokens(generated, self._renderer.decode) if request.sampling.log_probs else (),
        )
        kept = (committed.turn, committed.record) if live.trajectory_id else (None, None)
        await self._store.finish(
            live.job_id,
            live.trajectory_id,
            entry.row.number,
            turn=kept[0],
            record=kept[1],
            reply=reply_to_json(reply),
        )
        entry.state = CallState.DONE
        running.reply = reply
        drift = running.prepared.drift.value
        _log.info("call_answered", **_ids(live, running), turn=committed.turn, drift=drift, end=reply.end.value)


async def _prepare(conversation: Conversation, request: ChatRequest) -> Prepared:
    """Returns the prompt of a call; tokenizers take their time, so in a thread."""
    try:
        return await anyio.to_thread.run_sync(conversation.prepare, request)
    except BadRequestError as error:
        raise NoReplyError(BAD_REQUEST, str(error), field=error.field) from error
    except HistoryNotReplayedError as error:
        raise NoReplyError(BAD_REQUEST, str(error), field="messages") from error


async def _outcome_of(handle: ActionHandle[GenerateResult], running: RunningCall) -> Outcome[GenerateResult]:
    try:
        return await handle.outcome()
    except anyio.get_cancelled_exc_class():
        # When the gateway ends its actions go on: a retry attaches to them.
        if running.given_up:
            handle.abandon(_CALLER_GONE)
        raise


def _result_of(outcome: Outcome[GenerateResult]) -> GenerateResult:
    if isinstance(outcome, Succeeded):
        if outcome.value.finish_reason is FinishReason.ABORT:
            raise aborted()
        return outcome.value
    if isinstance(outcome, Failed) and outcome.kind is FailureKind.POLICY and outcome.partial is not None:
        # What the model itself brought about is a reply like any other.
        return outcome.partial
    assert isinstance(outcome, Failed | Cancelled | Expired)
    raise of_outcome(outcome)


def _ids(live: LiveTrajectory, running: RunningCall) -> dict[str, str]:
    return {
        "job_id": live.job_id,
        "trajectory_id": live.trajectory_id,
        "action_id": running.entry.row.action_id,
    }
