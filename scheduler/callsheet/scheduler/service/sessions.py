"""The two hot streams as the loop sees them: it puts replies, outcomes and dispatches there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from callsheet.scheduler.core.words.commands import AcknowledgeEnd, ManagerCommand
from callsheet.scheduler.core.words.model import Opened, Token
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.service.codec.durations import to_duration
from callsheet.scheduler.service.codec.manager_commands import encode_command
from callsheet.scheduler.service.codec.openings import end_of, life_of, opening_of
from callsheet.scheduler.service.codec.refusal_status import to_status
from callsheet.scheduler.service.limits.unread import UnreadBytes
from callsheet.scheduler.service.outbox import Outbox
from callsheet.scheduler.service.payloads.claims import Claim
from callsheet.v1 import client_service_pb2, manager_service_pb2
from callsheet.wire.encoded_fields import embedded, tag

# Batches waiting beyond which what commands print is dropped: a reader this far behind does not watch.
MAX_BATCHES_BEFORE_OUTPUT = 4

_RESULT = tag(client_service_pb2.ClientSessionResponse.RESULTS_FIELD_NUMBER)
_OUTCOME = tag(client_service_pb2.ClientSessionResponse.OUTCOMES_FIELD_NUMBER)
_OUTPUT = tag(client_service_pb2.ClientSessionResponse.OUTPUT_FIELD_NUMBER)
_OPENED = tag(client_service_pb2.ClientSessionResponse.OPENED_FIELD_NUMBER)
_ENDS_ACKNOWLEDGED = tag(manager_service_pb2.SchedulerItem.ENDS_ACKNOWLEDGED_FIELD_NUMBER)
_ITEM = tag(manager_service_pb2.ManagerSessionResponse.ITEMS_FIELD_NUMBER)


class ClientStream:
    """One client stream: a `ClientSession` and a `Watcher` of the core."""

    def __init__(self, unread: UnreadBytes | None = None, refused: Callable[[RefusalCode], None] | None = None) -> None:
        self.outbox: Outbox[int] = Outbox(_encode_accepted, unread)
        self._refused = refused
        self._claims: dict[int, Claim] = {}

    @property
    def gone(self) -> bool:
        """See `Watcher`."""
        return self.outbox.abandoned

    def expect_result(self, sequence: int, claim: Claim) -> None:
        """Settles the payloads of a submit once it has its result."""
        former = self._claims.get(sequence)
        self._claims[sequence] = claim
        if former is not None:
            # A client that uses a number twice; what it refers to stays for its job.
            former.settle(accepted=True)

    def put_result(self, sequence: int, refusal: RefusedError | None) -> None:
        """See `ClientSession`."""
        if self._claims and (claim := self._claims.pop(sequence, None)) is not None:
            claim.settle(accepted=refusal is None)
        if refusal is None:
            self.outbox.acknowledge(sequence)
        else:
            if self._refused is not None:
                self._refused(refusal.code)
            result = client_service_pb2.ItemResult(sequence=sequence, status=to_status(refusal))
            self.outbox.put(embedded(_RESULT, result.SerializeToString()))

    def put_opened(self, sequence: int, opened: Opened) -> None:
        """See `ClientSession`."""
        found = client_service_pb2.ItemOpened(
            sequence=sequence, opening=opening_of(opened), end=end_of(opened), life=life_of(opened.life)
        )
        self.outbox.put(embedded(_OPENED, found.SerializeToString()))

    def put_outcome(self, outcome: bytes) -> None:
        """See `Watcher`."""
        self.outbox.put(embedded(_OUTCOME, outcome))

    def miss_outcome(self) -> None:
        """See `Watcher`. The submit was accepted, so the session ends: its client submits again, which is refused."""
        rule = "asked for an outcome that was forgotten meanwhile; connect and ask again"
        self.outbox.close(RefusedError(RefusalCode.UNAVAILABLE, "session", "", rule, retry_after=0.1))

    def put_output(self, output: client_service_pb2.ActionOutput) -> None:
        """Takes the output of a command, or drops it if the reader is behind; the next offset shows the gap."""
        if not self.gone and self.outbox.backlog <= MAX_BATCHES_BEFORE_OUTPUT:
            self.outbox.put(embedded(_OUTPUT, output.SerializeToString()))


def _encode_accepted(sequences: Sequence[int]) -> bytes:
    return client_service_pb2.ClientSessionResponse(accepted=sequences).SerializeToString()


class ManagerStream:
    """One manager stream: a `ManagerSession` of the core."""

    def __init__(self, manager_id: str, unread: UnreadBytes | None = None) -> None:
        self.manager_id = manager_id
        self.outbox: Outbox[Token] = Outbox(_encode_ends_acknowledged, unread)

    def put_registered(self, epoch: int, heartbeat_interval: float, lease: float, shared_cores: Sequence[int]) -> None:
        """Answers the registration; times in seconds."""
        registered = manager_service_pb2.Registered(
            epoch=epoch,
            heartbeat_interval=to_duration(heartbeat_interval),
            lease=to_duration(lease),
            shared_cores=shared_cores,
        )
        item = manager_service_pb2.SchedulerItem(registered=registered)
        self.outbox.put(embedded(_ITEM, item.SerializeToString()))

    def put_command(self, command: ManagerCommand) -> None:
        """Queues a command."""
        if type(command) is AcknowledgeEnd:
            self.outbox.acknowledge(command.token, patient=command.patient)
        else:
            self.outbox.put(embedded(_ITEM, encode_command(command)))


def _encode_ends_acknowledged(tokens: Sequence[Token]) -> bytes:
    by_epoch: dict[int, list[int]] = {}
    for token in tokens:
        by_epoch.setdefault(token.epoch, []).append(token.sequence)
    told = (
        manager_service_pb2.EndsAcknowledged(epoch=epoch, sequences=sequences).SerializeToString()
        for epoch, sequences in by_epoch.items()
    )
    return b"".join(embedded(_ITEM, embedded(_ENDS_ACKNOWLEDGED, each)) for each in told)
