"""From the requests of clients to the core's events, alike for items of a stream and for unary rpcs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
from callsheet.scheduler.access.identity import Identity, Scope, denied
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.engine_weights import PublishRight
from callsheet.scheduler.core.words.model import ActionKey, Opened
from callsheet.scheduler.core.words.peers import Watcher
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError, invalid
from callsheet.scheduler.service.codec.decode import decode_action, decode_job, decode_trajectory
from callsheet.scheduler.service.codec.decode_buffer import decode_result_of
from callsheet.scheduler.service.codec.decode_weights import decode_offer
from callsheet.scheduler.service.codec.openings import from_wire
from callsheet.scheduler.service.payloads.claims import Claim, References
from callsheet.v1 import client_service_pb2, common_pb2, job_pb2, outcome_pb2
from callsheet.v1.rules.fields import at_least, identifier, known, short_text

_OF_GATEWAYS: Final = frozenset({"cancel", "open_trajectory", "submit"})


def decode_request(
    item: client_service_pb2.ClientItem,
    reply_to: events.ReplyTo,
    watcher: Watcher | None,
    right: Callable[[], PublishRight | None] = lambda: None,
) -> tuple[events.Event, References]:
    """Returns the event of an item, and the stored payloads that must be there for it.

    Args:
        item: The request.
        reply_to: The peer that gets the answer.
        watcher: The peer that gets the outcome of a submit.
        right: Returns the services that the caller may publish weights for; None for all services.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field, or UNIMPLEMENTED naming what is not built yet.
    """
    match item.WhichOneof("item"):
        case "submit":
            request, references = decode_action(item.submit)
            return events.SubmitRequested(reply_to, request, watcher), references
        case "open_job":
            return events.JobOpenRequested(reply_to, decode_job(item.open_job)), ()
        case "close_job":
            return events.JobCloseRequested(reply_to, identifier("job_id", item.close_job)), ()
        case "open_trajectory":
            return events.TrajectoryOpenRequested(reply_to, decode_trajectory(item.open_trajectory)), ()
        case "close_trajectory":
            return _decode_close_trajectory(item.close_trajectory, reply_to)
        case "cancel":
            key = decode_key(item.cancel.key)
            return events.CancelRequested(reply_to, key, short_text("reason", item.cancel.reason)), ()
        case "publish_policy_version":
            return _decode_published(item.publish_policy_version, reply_to, right())
        case "hold_job":
            return events.JobHoldRequested(reply_to, identifier("job_id", item.hold_job)), ()
        case "release_job":
            return events.JobReleaseRequested(reply_to, identifier("job_id", item.release_job)), ()
        case "cancel_work":
            return _decode_cancel_work(item.cancel_work, reply_to), ()
        case _:
            raise invalid("item", "", "must have exactly one request set")


def require_job_of(item: client_service_pb2.ClientItem, identity: Identity) -> None:
    """Checks that a caller may touch the job of an item, and that a gateway asks only for generation.

    Raises:
        RefusedError: PERMISSION_DENIED naming the job, or the request that a gateway may not make.
    """
    name = item.WhichOneof("item")
    if name is None:
        return
    if identity.scope is Scope.GATEWAY:
        _require_generation(item, name)
    if identity.scope is not Scope.JOB:
        return
    value = getattr(item, name)
    if isinstance(value, str):
        identity.require_job("job_id", value)
    else:
        identity.require_job("job_id", (value.key if name == "cancel" else value).job_id)


def _require_generation(item: client_service_pb2.ClientItem, name: str) -> None:
    """Checks that a request is one of those that a gateway needs."""
    if name not in _OF_GATEWAYS:
        raise denied("item", name, f"must be one of {', '.join(sorted(_OF_GATEWAYS))}: this token is of a gateway")
    kind = item.submit.WhichOneof("payload") if name == "submit" else "generate"
    if kind != "generate":
        raise denied("submit", kind or "", "must be generate: this token is of a gateway")


def job_of_references(item: client_service_pb2.ClientItem) -> str:
    """Returns the job that the payloads of an item are kept for."""
    return item.submit.job_id or item.publish_policy_version.job_id or item.close_trajectory.job_id


def decode_key(key: common_pb2.ActionKey) -> ActionKey:
    """Returns a validated key.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    return ActionKey(identifier("key.job_id", key.job_id), identifier("key.action_id", key.action_id))


def _decode_close_trajectory(
    message: client_service_pb2.CloseTrajectoryRequest, reply_to: events.ReplyTo
) -> tuple[events.TrajectoryCloseRequested, References]:
    end = from_wire(known("end", message.end, job_pb2.TrajectoryEnd.values()))
    job_id, trajectory_id = identifier("job_id", message.job_id), identifier("trajectory_id", message.trajectory_id)
    result, references = decode_result_of(message, end)
    reason = short_text("reason", message.reason)
    return events.TrajectoryCloseRequested(reply_to, job_id, trajectory_id, end, result, reason), references


def _decode_cancel_work(
    message: client_service_pb2.CancelWorkRequest, reply_to: events.ReplyTo
) -> events.WorkCancelRequested:
    if message.group_id and message.trajectory_id:
        raise invalid("group_id", message.group_id, "must be empty where trajectory_id is set")
    return events.WorkCancelRequested(
        reply_to,
        identifier("job_id", message.job_id),
        short_text("group_id", message.group_id),
        short_text("trajectory_id", message.trajectory_id),
        short_text("reason", message.reason),
    )


def _decode_published(
    message: client_service_pb2.PublishPolicyVersionRequest, reply_to: events.ReplyTo, right: PublishRight | None
) -> tuple[events.PolicyPublished, References]:
    version = int(at_least("version", message.version, 0))
    job_id = identifier("job_id", message.job_id)
    offer, references = decode_offer(message)
    return events.PolicyPublished(reply_to, job_id, version, offer, right), references


class UnaryReply:
    """Waits for the answer to one request, and for one outcome or one batch.

    Attributes:
        gone: Its rpc is over; see `Watcher`.
        claim: The payloads of the submit, if it is one.
        opened: What was found, once a request that opens something is acknowledged.
        batch_given: The batch that was asked for is leased.
    """

    def __init__(self) -> None:
        self._answered = anyio.Event()
        self._refusal: RefusedError | None = None
        self.opened: Opened | None = None
        self.batch_given = anyio.Event()
        self._has_outcome = anyio.Event()
        self._outcome: outcome_pb2.Outcome | None = None
        self.gone = False
        self.claim: Claim | None = None

    def put_result(self, sequence: int, refusal: RefusedError | None) -> None:
        """See `ClientSession`."""
        if self.claim is not None:
            self.claim.settle(accepted=refusal is None)
        self._refusal = refusal
        self._answered.set()

    def put_opened(self, sequence: int, opened: Opened) -> None:
        """See `ClientSession`."""
        self.opened = opened
        self._answered.set()

    def put_outcome(self, outcome: bytes) -> None:
        """See `Watcher`."""
        self._outcome = outcome_pb2.Outcome.FromString(outcome)
        self._has_outcome.set()

    def put_batch(self, job_id: str, batch_id: str) -> None:
        """See `BatchTaker`."""
        self.batch_given.set()

    def miss_outcome(self) -> None:
        """See `Watcher`."""
        self._has_outcome.set()

    async def result(self, wait_s: float) -> None:
        """Waits for the acknowledgement.

        Raises:
            RefusedError: The request was refused, or (UNAVAILABLE) not answered in time.
        """
        with anyio.move_on_after(wait_s):
            await self._answered.wait()
        if not self._answered.is_set():
            raise RefusedError(
                RefusalCode.UNAVAILABLE, "request", f"{wait_s:.1f} s", "was not answered in time; ask again", 1.0
            )
        if self._refusal is not None:
            raise self._refusal

    async def outcome(self, wait_s: float) -> outcome_pb2.Outcome | None:
        """Waits for the outcome; None if there is none in time."""
        with anyio.move_on_after(wait_s):
            await self._has_outcome.wait()
        return self._outcome
