"""Keeps room for descriptors on their way over unix sockets, where all sandboxes have the manager's own user.

The kernel counts them for each user, and lets a process send more while the count is below that process's own limit of
open files. Commands have a lower limit than the manager, so they usually leave room. Processes that pass that check at
the same moment can go beyond it together: then the sandbox that holds most of them is found, and its commands end.
"""

from __future__ import annotations

from callsheet.managers.sandbox.isolation.takers import Takers, open_file_details, waiting_in_sockets

# A message carries at most 253.
_CERTAIN = 253


class DescriptorRoom:
    """Makes room."""

    def __init__(self, takers: Takers) -> None:
        """Args: takers: The sandboxes that can hold it."""
        self._takers = takers

    async def make(self) -> None:
        """Ends the commands of the sandbox that has most descriptors on their way, if any has, unless that happens."""
        await self._takers.end_greatest("descriptors_in_flight", descriptors_in_flight, _CERTAIN)


def descriptors_in_flight(root: int) -> int:
    """Returns how many descriptors wait in the sockets of all processes below one, up to `_CERTAIN` and more.

    Sockets that are on their way themselves are not seen, so it may be too few, but not none.
    """
    return open_file_details(root, waiting_in_sockets, certain=_CERTAIN)
