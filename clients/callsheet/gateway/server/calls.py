"""One call from its request to its reply: prepared under its trajectory's lock, generated without, committed under it.

A call is kept with its action before that is submitted. A marked retry of it waits for the action, is given the reply
of its turn again, or attaches to the same action at the scheduler: after a restart, and outside of trajectories.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import structlog
from callsheet.client import CallsheetError, Client, Generate, LogProbsMode, Sampling
from callsheet.gateway.chat import BadRequestError, ChatReply, ChatRequest
from callsheet.gateway.conversations.conversation import Conversation, HistoryNotReplayedError
from callsheet.gateway.conversations.renderer import ParsedReply, text_before
from callsheet.gateway.conversations.turns import ConversationTurn, Drift, Generated, Prepared, to_record
from callsheet.gateway.server.call_store import CallRow, CallStore
from callsheet.gateway.server.callers import Caller
from callsheet.gateway.server.engine_parser import EngineParser
from callsheet.gateway.server.faults import BAD_REQUEST, PROMPT, TOO_MANY, UNAVAILABLE, NoReplyError, of_error
from callsheet.gateway.server.generations import generate
from callsheet.gateway.server.live_trajectories import LiveTrajectories, LiveTrajectory
from callsheet.gateway.server.models import ServedModels
from callsheet.gateway.server.retries import CallEntry, CallMark, CallState, RunningCall, repeated
from callsheet.gateway.server.sampling import generated_of, reply_tokens, sampling_of
from callsheet.gateway.server.settings import GatewaySettings
from sqlalchemy.exc import SQLAlchemyError

_BUSY_S: Final = 1.0
_FULL_S: Final = 30.0
_BROKEN: Final = 500
_PREFIX: Final = "gateway-"
# Tokens of a reply beyond which it is read and written in a thread, so that other calls go on meanwhile.
LONG_REPLY: Final = 4096
_log = structlog.get_logger(__name__)
# The same of a request's body for its prompt.
_SHORT_BYTES: Final = 4096
T = TypeVar("T")


# What is kept of a call's action before it is submitted, so that a retry submits the very same one. Pure.
#
# The prompt is kept as what it adds to the turn that it continues. So neither a template that tells the date, nor a
# context that became another, nor a newer gateway makes it another action.
def to_kept(prepared: Prepared, action: Generate) -> dict[str, Any]:
    """Returns a prompt and its action as JSON can hold them."""
    sampling = {each.name: getattr(action.sampling, each.name) for each in fields(action.sampling)}
    sampling["log_probs_mode"] = action.sampling.log_probs_mode.value
    return {
        "parent": prepared.parent,
        "kept": prepared.kept,
        "suffix": list(prepared.token_ids[prepared.kept :]),
        "known_messages": prepared.known_messages,
        "drift": prepared.drift.value,
        "reason": prepared.reason,
        "prompt_digest": prepared.prompt_digest,
        "sampling": sampling,
        "model": action.model,
    }


def from_kept(kept: Mapping[str, Any], request: ChatRequest, conversation: Conversation) -> tuple[Prepared, Generate]:
    """Returns the prompt and the action that were kept.

    Args:
        kept: As `to_kept` made it.
        request: The call, which the retry repeats.
        conversation: Of the call. It may have had turns since.
    """
    parent = kept["parent"]
    known = () if parent is None else conversation.tokens_of(parent)[: kept["kept"]]
    prepared = Prepared(
        request,
        (*known, *kept["suffix"]),
        parent,
        kept["kept"],
        kept["known_messages"],
        Drift(kept["drift"]),
        kept["reason"],
        kept["prompt_digest"],
    )
    said = kept["sampling"]
    sampling = Sampling(
        **said
        | {
            "stop": tuple(said["stop"]),
            "stop_token_ids": tuple(said["stop_token_ids"]),
            "log_probs_mode": LogProbsMode(said["log_probs_mode"]),
        }
    )
    return prepared, Generate(prepared.token_ids, sampling, kept["model"])


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
        is_full: Callable[[], bool] = lambda: False,
        parser: EngineParser | None = None,
    ) -> None:
        """Args:
        client: Of the scheduler.
        store: Where call records are kept.
        live: Conversations.
        models: What is served.
        settings: Of the gateway.
        tasks: Where calls run; they outlive the requests that asked for them.
        is_full: Whether records have no room left; calls are then told to try again.
        parser: Says what replies consist of; None leaves that to the renderer.
        """
        self._client = client
        self._store = store
        self._live = live
        self._renderer = live.renderer
        self._models = models
        self._settings = settings
        self._tasks = tasks
        self._is_full = is_full
        self._parser = parser
        self._in_flight = 0

    async def reply(self, caller: Caller, request: ChatRequest, mark: CallMark) -> ChatReply:
        """Returns the reply to a call. Cancelling this leaves the call to others who wait, or gives it up.

        Args:
            caller: Who calls.
            request: What is asked.
            mark: What the request tells of which call it is.

        Raises:
            NoReplyError: There is none.
        """
        live = await self._live.get(caller.job, caller.trajectory_id)
        entry, is_first = None, not mark.retries
        try:
            try:
                async with live.lock:
                    entry = await self._repeated(live, mark)
                    is_first = entry is None
                    found = await self._find_or_begin(live, caller, request, mark, entry)
            except BaseException as error:
                is_passing = not isinstance(error, NoReplyError) or error.is_passing
                if is_first and is_passing and not mark.is_named:
                    # Its client comes again, and is not to be taken for another one with an equal body. A repeat that
                    # was not looked up may have a reply, and a key tells by itself whether it has.
                    refused = CallEntry(mark.digest, CallState.FAILED, retries=mark.retries, ended_at=time.time())
                    live.calls.add(refused)
                raise
            return found if isinstance(found, ChatReply) else await self._wait(found)
        finally:
            self._live.release(live)

    async def count_tokens(self, caller: Caller, request: ChatRequest) -> int:
        """Returns how many tokens the prompt of a call would have, and keeps nothing of it.

        Raises:
            NoReplyError: The call breaks a rule.
        """
        live = await self._live.get(caller.job, caller.trajectory_id)
        try:
            async with live.lock:
                conversation = live.conversation if live.trajectory_id else self._live.new_conversation()
                return len((await _prepare(conversation, request)).token_ids)
        finally:
            self._live.release(live)

    async def _repeated(self, live: LiveTrajectory, mark: CallMark) -> CallEntry | None:
        """Returns the call that a request repeats; None if it is a new one. What has no reply is repeated by that."""
        if not (mark.retries or mark.is_named):
            return None
        if mark.is_named and live.calls.forgets and not live.calls.of(mark.digest):
            row = await self._store.newest(live.job, live.trajectory_id, mark.digest)
            if row is not None:
                live.restore(row, time.time())
        entry = repeated(live.calls.of(mark.digest), mark, time.time(), live.conversation.has_next)
        if entry is None:
            return None
        entry.retries = max(entry.retries, mark.retries)
        if entry.state is CallState.FAILED or (entry.running is not None and entry.running.is_lost):
            live.calls.remove(entry)
            return None
        return entry

    async def _find_or_begin(
        self, live: LiveTrajectory, caller: Caller, request: ChatRequest, mark: CallMark, entry: CallEntry | None
    ) -> ChatReply | RunningCall:
        if entry is not None and entry.running is not None:
            return entry.running
        if entry is not None and entry.row is not None and entry.row.turn is not None:
            entry.answered = True
            return self._reply(entry.row, live.conversation.turns[entry.row.turn], request)
        self._take_seat(live)
        try:
            resumed = None if entry is None else await self._resumed(live, entry, request)
            running = resumed or await self._begun(live, caller, request, mark)
        except BaseException:
            self._leave_seat(live)
            raise
        if entry is not None and resumed is None:
            live.calls.remove(entry)
        running.entry.running = running
        self._tasks.start_soon(self._run, live, caller, running)
        return running

    async def _resumed(self, live: LiveTrajectory, entry: CallEntry, request: ChatRequest) -> RunningCall | None:
        """Returns a call that attaches to its action, whatever became of that; None if it has none to attach to."""
        if entry.row is None:
            return None
        kept = await self._store.action(live.job, live.trajectory_id, entry.row.number)
        if kept is None:
            return None
        conversation = self._conversation(live)
        prepared, action = from_kept(kept, request, conversation)
        return RunningCall(entry, prepared, action, conversation)

    async def _begun(self, live: LiveTrajectory, caller: Caller, request: ChatRequest, mark: CallMark) -> RunningCall:
        """Returns a new call. It is kept before its action is submitted, so that a retry finds that again."""
        conversation = self._conversation(live)
        prepared = await _prepare(conversation, request, mark.size)
        action = await self._action(caller, prepared)
        row = CallRow(live.take_number(), mark.digest, f"{_PREFIX}{secrets.token_hex(16)}")
        await self._store.begin(live.job, live.trajectory_id, row, time.time(), to_kept(prepared, action))
        entry = CallEntry(mark.digest, CallState.BEGUN, row, mark.retries)
        live.calls.add(entry)
        return RunningCall(entry, prepared, action, conversation)

    async def _action(self, caller: Caller, prepared: Prepared) -> Generate:
        sampling = sampling_of(
            prepared.request.sampling,
            caller.sampling,
            stop_token_ids=self._renderer.stop_token_ids,
            prompt_tokens=len(prepared.token_ids),
            context_length=await self._models.context_length(),
            default_max_tokens=self._settings.default_max_tokens,
        )
        return Generate(prepared.token_ids, sampling, self._settings.service)

    def _conversation(self, live: LiveTrajectory) -> Conversation:
        """The conversation of a call; one outside of trajectories has its own."""
        return live.conversation if live.trajectory_id else self._live.new_conversation()

    def _take_seat(self, live: LiveTrajectory) -> None:
        """Counts a call as under way; raises NoReplyError where as many are as may be, or none can be kept."""
        if self._is_full():
            said = "the gateway's call records take all the room that they may: close trajectories"
            raise NoReplyError(UNAVAILABLE, said, retry_after_s=_FULL_S)
        bounds = [(self._in_flight, self._settings.max_calls, "the gateway")]
        if live.trajectory_id:
            bounds.append((live.in_flight, self._settings.max_trajectory_calls, "the trajectory"))
        for count, most, whose in bounds:
            if count >= most:
                said = f"{whose} has {count} calls under way, and no more at once"
                raise NoReplyError(TOO_MANY, said, retry_after_s=_BUSY_S)
        live.in_flight += 1
        self._in_flight += 1

    def _leave_seat(self, live: LiveTrajectory) -> None:
        live.in_flight -= 1
        self._in_flight -= 1

    async def _wait(self, running: RunningCall) -> ChatReply:
        running.waiters += 1
        try:
            await running.ended.wait()
        finally:
            running.waiters -= 1
            if not running.waiters and not running.ended.is_set():
                self._tasks.start_soon(self._give_up_later, running)
        if running.reply is not None:
            running.entry.answered = True
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
            if not fault.is_passing and running.entry.state is CallState.FAILED:
                live.calls.remove(running.entry)
        except SQLAlchemyError:
            # What is not kept is not answered: the process ends, and what was kept is read again.
            raise
        except Exception:
            _log.exception("call_broke", **_ids(live, running))
            await self._note_failure(live, running)
            running.fault = NoReplyError(_BROKEN, "the gateway failed")
        finally:
            running.entry.running = None
            running.entry.ended_at = time.time()
            self._leave_seat(live)
            running.ended.set()

    async def _perform(self, live: LiveTrajectory, caller: Caller, running: RunningCall) -> None:
        try:
            result = await generate(
                self._client, live.job.job_id, live.trajectory_id, running, may_open=caller.is_trainer
            )
        except NoReplyError:
            await self._note_failure(live, running)
            raise
        except anyio.get_cancelled_exc_class():
            if running.given_up:
                await self._note_failure(live, running)
                _log.info("call_given_up", **_ids(live, running))
            raise
        except CallsheetError as error:
            # Nobody knows what became of the action: a retry attaches to it.
            raise of_error(error) from error
        running.has_tokens = True
        # The parser has a deadline of its own.
        with anyio.CancelScope(shield=True):
            generated = generated_of(result)
            parsed = await self._parsed(running.prepared, generated)
            async with live.lock:
                await self._commit(live, running, generated, parsed)

    async def _parsed(self, prepared: Prepared, generated: Generated) -> ParsedReply | None:
        """Returns what a parser beside the gateway finds in a reply; None leaves it to the renderer."""
        request = prepared.request
        if self._parser is None or request.prompt is not None:
            return None
        text = await _read(generated, lambda: self._renderer.marked_text(generated.token_ids, prepared.token_ids))
        tools = () if request.tool_choice == "none" else request.tools
        return await self._parser.parse(text_before(text, request.sampling.stop), tools)

    async def _note_failure(self, live: LiveTrajectory, running: RunningCall) -> None:
        running.entry.state = CallState.FAILED
        await self._store.fail(live.job, live.trajectory_id, running.row.number)

    async def _commit(
        self,
        live: LiveTrajectory,
        running: RunningCall,
        generated: Generated,
        parsed: ParsedReply | None,
    ) -> None:
        entry, row = running.entry, running.row
        turn = await _read(generated, lambda: running.conversation.draft(running.prepared, generated, parsed))
        # Outside of trajectories there are no samples, and the scheduler keeps what was sampled for retries.
        if live.trajectory_id:
            size = await self._store.finish(
                live.job, live.trajectory_id, row.number, turn=turn.number, record=to_record(turn)
            )
            # Only now: what is not kept is continued by no call.
            running.conversation.add(turn)
            live.keeps(size)
            entry.row = replace(row, turn=turn.number)
        entry.state = CallState.DONE
        running.reply = self._reply(row, turn, running.prepared.request)
        _log.info("call_answered", **_ids(live, running), turn=turn.number, drift=turn.drift.value, end=turn.end.value)

    def _reply(self, row: CallRow, turn: ConversationTurn, request: ChatRequest) -> ChatReply:
        return ChatReply(
            call_id=row.action_id.removeprefix(_PREFIX),
            created_s=int(time.time()),
            model=request.model or self._settings.service,
            message=turn.message,
            end=turn.end,
            prompt_tokens=turn.prompt_length,
            completion_tokens=len(turn.reply.token_ids),
            cached_tokens=turn.reply.cached_tokens,
            tokens=reply_tokens(turn.reply, self._renderer.token_bytes) if request.sampling.log_probs else (),
        )


async def _prepare(conversation: Conversation, request: ChatRequest, size: float = math.inf) -> Prepared:
    """Returns the prompt of a call. Tokenizers take their time with all but the shortest of bodies, so in a thread."""
    try:
        if size <= _SHORT_BYTES and request.prompt is None:
            return conversation.prepare(request)
        return await anyio.to_thread.run_sync(conversation.prepare, request)
    except BadRequestError as error:
        raise NoReplyError(BAD_REQUEST, str(error), field=error.field) from error
    except HistoryNotReplayedError as error:
        raise NoReplyError(BAD_REQUEST, str(error), field=PROMPT) from error


async def _read(generated: Generated, work: Callable[[], T]) -> T:
    """Returns what a reply says, or the like; of a long one in a thread."""
    return work() if len(generated.token_ids) <= LONG_REPLY else await anyio.to_thread.run_sync(work)


def _ids(live: LiveTrajectory, running: RunningCall) -> dict[str, str]:
    return {
        "job_id": live.job.job_id,
        "trajectory_id": live.trajectory_id,
        "action_id": running.row.action_id,
    }
