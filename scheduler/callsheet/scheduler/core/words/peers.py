"""Peers that the core hears and answers.

Shells make these values. The core keeps and compares them, and names them in commands.
"""

from __future__ import annotations

from typing import Protocol

from callsheet.scheduler.core.words.model import Opened
from callsheet.scheduler.core.words.refusals import RefusedError


class ClientSession(Protocol):
    """Takes the answers to a client's requests."""

    def put_result(self, sequence: int, refusal: RefusedError | None) -> None:
        """Takes the acknowledgement of a request, or its refusal."""

    def put_opened(self, sequence: int, opened: Opened) -> None:
        """Takes the acknowledgement of a request that opens something, and what it found."""


class Watcher(Protocol):
    """Takes the outcome of an action."""

    @property
    def gone(self) -> bool:
        """True if nobody would read it any more."""

    def put_outcome(self, outcome: bytes) -> None:
        """Takes an encoded outcome."""

    def miss_outcome(self) -> None:
        """An outcome that it asked for was forgotten meanwhile."""


class BatchTaker(Protocol):
    """Takes a batch of finished trajectories."""

    @property
    def gone(self) -> bool:
        """True if nobody waits for it any more."""

    def put_batch(self, job_id: str, batch_id: str) -> None:
        """Takes the batch, which is leased to it."""


class ManagerSession(Protocol):
    """One stream of a manager."""

    @property
    def manager_id(self) -> str:
        """The manager whose stream it is."""


class Usage(Protocol):
    """Resources that an attempt used, as its manager measured them."""

    @property
    def cpu_s(self) -> float:
        """Seconds of one core; 0 if not measured."""

    @property
    def peak_memory_bytes(self) -> int:
        """The most memory it had; 0 if not measured."""
