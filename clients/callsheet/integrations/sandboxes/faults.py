"""What a facade's client is told where a sandbox or a command has no result."""

from __future__ import annotations

from abc import ABC, abstractmethod

from callsheet.client import (
    CallsheetError,
    Cancelled,
    CommandResult,
    EnvResetResult,
    Expired,
    Failed,
    PayloadError,
)

NoResult = (
    Failed[CommandResult] | Failed[EnvResetResult] | Cancelled[CommandResult] | Cancelled[EnvResetResult] | Expired
)
"""An outcome without a result."""


class FacadeError(Exception):
    """An error to tell a client in its protocol's words.

    Attributes:
        ends_sandbox: There is no sandbox any more.
    """

    ends_sandbox: bool = False


class FaultWords(ABC):
    """How a protocol tells what went wrong."""

    @abstractmethod
    def refused(self, error: CallsheetError) -> FacadeError:
        """What the scheduler, or the way to it, had against an action."""

    @abstractmethod
    def payload_lost(self, error: PayloadError) -> FacadeError:
        """An outcome is there, but its bytes are not."""

    @abstractmethod
    def no_result(self, outcome: NoResult) -> FacadeError:
        """What became of an action that has no result."""

    @abstractmethod
    def closed(self) -> FacadeError:
        """The sandbox was given up while it began."""
