"""Causes for which an action waits after its dispatch, as managers, outcomes, summaries and metrics name them."""

from __future__ import annotations

from enum import Enum
from typing import Final

SHORTEST_WAIT_S: Final = 0.001
"""Shortest time that counts as a wait; less counts as a part of the step in which it happened."""


class Cause(Enum):
    """A cause of waiting; the values are keys of `waited_s`.

    Attributes:
        CORES: Shared cores, which others had.
        MEMORY: Memory that others give up.
        IMAGE: Its image: pulled, built or unpacked.
        SET_UP: The same set-up, which another reset runs.
        REFERENCE: The same reward on the state after reset.
        SANDBOX: Its sandbox, which another action has; or the making of sandboxes, which has failed lately.
        ENGINE: The engine: its load, proved weights, a place in its batch.
        MODEL: Its reward model's turn, the load or restore of its weights included.
        QUOTA: Units of a quota of an outside API, or the end of a wait that its provider asked for.
        ATTEMPTS: Attempts before the last one, and one whose end its manager did not report.
        SCHEDULER: The scheduler, which was started again.
        OTHER: A cause that is newer than the code that reports it.
    """

    CORES = "cores"
    MEMORY = "memory"
    IMAGE = "image"
    SET_UP = "set_up"
    REFERENCE = "reference"
    SANDBOX = "sandbox"
    ENGINE = "engine"
    MODEL = "model"
    QUOTA = "quota"
    ATTEMPTS = "attempts"
    SCHEDULER = "scheduler"
    OTHER = "other"


CAUSES: Final = tuple(cause.value for cause in Cause)


def known(cause: str) -> str:
    """Returns a cause that was told, as this code names it."""
    return cause if cause in CAUSES else Cause.OTHER.value
