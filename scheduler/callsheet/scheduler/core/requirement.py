"""How a check of the core's state fails."""

from __future__ import annotations

from callsheet.scheduler.core.entities import Action


class InvariantViolationError(AssertionError):
    """The core's state contradicts itself."""


def require(condition: bool, message: str, action: Action | None = None) -> None:
    """Fails unless a condition holds.

    Raises:
        InvariantViolationError: With the story of the action concerned, if one is named.
    """
    if not condition:
        story = "".join(f"\n  {time:.6f} {event}" for time, event in action.story) if action is not None else ""
        raise InvariantViolationError(message + story)
