"""Settings of a client: everything that is not an address."""

from __future__ import annotations

import random
from dataclasses import dataclass

from callsheet.client.errors import invalid


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client connects, waits and gives up. Times are seconds.

    Attributes:
        give_up_after_s: How long open work may be without a connection before it fails with ConnectionLostError.
        backoff_initial_s: Ceiling of the wait before the first reconnect; it doubles with each further one.
        backoff_max_s: Highest ceiling of the wait.
        call_timeout_s: Deadline of a unary call.
        close_timeout_s: How long closing a client or leaving a trajectory may wait for the scheduler.
        outbox_items: Items that may wait to be written before callers have to wait.
        channel_options: gRPC channel options that override the client's own.

    Raises:
        InvalidArgumentError: A number out of its range.
    """

    give_up_after_s: float = 600.0
    backoff_initial_s: float = 0.05
    backoff_max_s: float = 5.0
    call_timeout_s: float = 30.0
    close_timeout_s: float = 5.0
    outbox_items: int = 16_384
    channel_options: tuple[tuple[str, int | str], ...] = ()

    def __post_init__(self) -> None:
        """Checks the ranges."""
        for name in ("give_up_after_s", "backoff_initial_s", "backoff_max_s", "call_timeout_s", "close_timeout_s"):
            if not getattr(self, name) > 0:
                raise invalid(name, getattr(self, name), "seconds above 0")
        if self.outbox_items < 1:
            raise invalid("outbox_items", self.outbox_items, "at least 1")


def backoff_s(failures: int, options: ClientOptions, source: random.Random) -> float:
    """Returns the wait before the next try: between half of the ceiling and the ceiling, so that clients spread.

    Args:
        failures: Tries that failed in a row, at least 1.
        options: Where the ceilings come from.
        source: Where chance comes from.
    """
    ceiling = min(options.backoff_max_s, options.backoff_initial_s * 2.0 ** min(failures - 1, 32))
    return ceiling * source.uniform(0.5, 1.0)
