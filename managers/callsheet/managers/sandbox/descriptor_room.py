"""Keeps room for descriptors on their way over unix sockets, where all sandboxes have the manager's own user.

The kernel counts them for each user, and lets a process send more while the count is below that process's own limit of
open files. Commands have a lower limit than the manager, so they usually leave room. Processes that pass that check at
the same moment can go beyond it together: then the sandbox that holds most of them is found, and its commands end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.sandbox.backend import Sandbox
from callsheet.managers.sandbox.errors import SandboxError
from callsheet.managers.sandbox.process_tree import processes_below

# A message carries at most 253; more than so many open files need not be looked at one by one.
_CERTAIN = 253
_MOST_LOOKED_AT = 20_000

_log = structlog.get_logger(__name__)


class DescriptorRoom:
    """Finds who takes the room."""

    def __init__(self) -> None:
        self._pids: dict[Sandbox, int] = {}
        self._looking = False

    def add(self, sandbox: Sandbox, first_process: int) -> None:
        """Takes a sandbox, until it is destroyed."""
        self._pids[sandbox] = first_process
        sandbox.on_destroyed(partial(self._remove, sandbox))

    def _remove(self, sandbox: Sandbox) -> None:
        self._pids.pop(sandbox, None)

    async def make(self) -> None:
        """Ends the commands of the sandbox that has most descriptors on their way, if any has, unless that happens."""
        if self._looking:
            return
        self._looking = True
        try:
            # A copy: sandboxes come and go meanwhile.
            held = await anyio.to_thread.run_sync(_held_by, list(self._pids.items()))
            if not held:
                return
            sandbox, count = max(held, key=lambda entry: entry[1])
            _log.warning("descriptors_in_flight", sandbox=sandbox.spec.sandbox_id, at_least=count)
            try:
                await sandbox.kill()
            except SandboxError as error:
                _log.debug("not_killed", sandbox=sandbox.spec.sandbox_id, reason=str(error))
        finally:
            self._looking = False


def _held_by(pids: Iterable[tuple[Sandbox, int]]) -> list[tuple[Sandbox, int]]:
    """Blocks: returns the sandboxes that hold any, with how many could be seen; ends at one that holds many."""
    found = []
    for sandbox, pid in pids:
        count = descriptors_in_flight(pid)
        if count >= _CERTAIN:
            return [(sandbox, count)]
        if count:
            found.append((sandbox, count))
    return found


def descriptors_in_flight(root: int) -> int:
    """Returns how many descriptors wait in the sockets of all processes below one, or `_CERTAIN` and more.

    Sockets that are on their way themselves are not seen, so it may be too few, but not none. Who has more open files
    than can be looked at counts as one who hides them.
    """
    count = looked_at = 0
    for process in processes_below(root):
        try:
            names = os.listdir(f"/proc/{process}/fdinfo")
        except OSError:
            continue
        for name in names:
            looked_at += 1
            count += _waiting_in(f"/proc/{process}/fdinfo/{name}")
            if count >= _CERTAIN or looked_at >= _MOST_LOOKED_AT:
                return max(count, _CERTAIN)
    return count


def _waiting_in(path: str) -> int:
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(b"scm_fds:"):
                    return int(line.split()[1])
    except OSError:
        # It was closed meanwhile.
        return 0
    return 0
