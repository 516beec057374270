"""The error of a call without a result, with the failure of its attempt. Settings do without its messages."""

from __future__ import annotations

from typing import Final

from callsheet.managers.executor import Broken
from callsheet.v1 import outcome_pb2

POLICY: Final = outcome_pb2.FAILURE_KIND_POLICY
ENV: Final = outcome_pb2.FAILURE_KIND_ENV
INFRA: Final = outcome_pb2.FAILURE_KIND_INFRA
QUOTA: Final = outcome_pb2.FAILURE_KIND_QUOTA


class ToolFailedError(Exception):
    """A call failed."""

    def __init__(
        self,
        kind: outcome_pb2.FailureKind.ValueType,
        reason: str,
        message: str,
        *,
        retry_after_s: float = 0.0,
        partial: outcome_pb2.Succeeded | None = None,
    ) -> None:
        """See `outcome_pb2.Failed`. The message must hold no secret: what was answered only if it is masked."""
        super().__init__(message)
        failed = outcome_pb2.Failed(
            kind=kind, reason=reason, message=message, retry_after_s=retry_after_s, partial=partial
        )
        self.broken = Broken(failed)
