"""What commands print while they run, on its way to the client sessions that watch them.

It passes by the core and the journal: it is worth nothing once the outcome is there, which has it all.
"""

from __future__ import annotations

from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import Token
from callsheet.scheduler.core.words.refusals import invalid
from callsheet.scheduler.service.codec.rules import at_least, known
from callsheet.scheduler.service.sessions import ClientStream
from callsheet.v1 import client_service_pb2, common_pb2, manager_service_pb2

MAX_CHUNK = 65_536


def forward_output(state: SchedulerState, manager_id: str, output: manager_service_pb2.AttemptOutput) -> None:
    """Puts a part of an attempt's output into the streams of those who wait for its action.

    What an attempt prints that is not the current one of its action, or not this manager's, is dropped.

    Raises:
        RefusedError: INVALID_ARGUMENT if it breaks the contract.
    """
    _check(output.chunk)
    attempt = state.attempts.get(Token(output.token.epoch, output.token.sequence))
    if attempt is None or attempt.manager_id != manager_id or attempt.action.attempt is not attempt:
        return
    watching = [watcher for watcher in attempt.action.watchers if isinstance(watcher, ClientStream)]
    if not watching:
        return
    told = client_service_pb2.ActionOutput(chunk=output.chunk)
    told.key.job_id, told.key.action_id = attempt.action.key
    for watcher in watching:
        watcher.put_output(told)


def _check(chunk: common_pb2.OutputChunk) -> None:
    known("output.chunk.stream", chunk.stream, common_pb2.OutputStream.values(), required=True)
    at_least("output.chunk.offset", chunk.offset, 0)
    if not 0 < len(chunk.content) <= MAX_CHUNK:
        raise invalid("output.chunk.content", f"{len(chunk.content)} bytes", f"must have 1 to {MAX_CHUNK} bytes")
