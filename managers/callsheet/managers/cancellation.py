"""Distinguishes a cancellation that was asked for from one that was not."""

from __future__ import annotations

import math

import anyio


def cancellation_requested() -> bool:
    """Returns whether a scope around the caller is cancelled.

    An rpc of grpc.aio that is cancelled, by whomever, raises a cancellation of its own making. No scope takes it for
    its own, so it would end the task, and with it the whole task group, in silence. Whoever calls foreign code in a
    task catches it outside every scope of its own, and passes it on only if this is true.
    """
    return anyio.current_effective_deadline() == -math.inf
