"""Finds the sandbox that takes most of what the kernel has for all of one user, and ends its commands.

What a process holds is read from what the kernel tells of its open files. One that is not dumpable shows that all the
same, as this process's user has made its user namespace; but not what its descriptors are links to.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable, Iterable
from functools import cache, partial

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.errors import SandboxError
from callsheet.managers.sandbox.process_tree import processes_below

# More open files than so many need not be looked at one by one.
_MOST_LOOKED_AT = 20_000

_log = structlog.get_logger(__name__)

# A message carries at most 253.
_MOST_DESCRIPTORS = 253

# So many watches are no program's need.
_MOST_WATCHES = 100_000
# What was killed lets go of its watches one by one.
_ROOM_SECONDS = 20.0
_LOOK_SECONDS = 0.05


class Takers:
    """The sandboxes that can take it."""

    def __init__(self) -> None:
        self._pids: dict[AgentSandbox, int] = {}
        self._looking = False

    def add(self, sandbox: AgentSandbox, first_process: int) -> None:
        """Takes a sandbox, until it is destroyed."""
        self._pids[sandbox] = first_process
        sandbox.on_destroyed(partial(self._remove, sandbox))

    def _remove(self, sandbox: AgentSandbox) -> None:
        self._pids.pop(sandbox, None)

    async def end_greatest(self, what: str, look: Callable[[int], int], certain: int) -> None:
        """Ends the commands of the sandbox that holds most, if any holds some, unless that happens already.

        Args:
            what: It holds, for the log.
            look: Returns how many all processes below one hold; blocks.
            certain: So many are held by nobody else.
        """
        if self._looking:
            return
        self._looking = True
        try:
            # A copy: sandboxes come and go meanwhile.
            found = await anyio.to_thread.run_sync(_found, list(self._pids.items()), look, certain)
            if not found:
                return
            sandbox, count = max(found, key=lambda entry: entry[1])
            _log.warning(what, sandbox=sandbox.spec.sandbox_id, at_least=count)
            try:
                await sandbox.kill()
            except SandboxError as error:
                _log.debug("not_killed", sandbox=sandbox.spec.sandbox_id, reason=str(error))
        finally:
            self._looking = False


def _found(
    pids: Iterable[tuple[AgentSandbox, int]], look: Callable[[int], int], certain: int
) -> list[tuple[AgentSandbox, int]]:
    """Blocks: returns the sandboxes that hold any, with how many could be seen; ends at one that certainly does."""
    entries = []
    for sandbox, pid in pids:
        count = look(pid)
        if count >= certain:
            return [(sandbox, count)]
        if count:
            entries.append((sandbox, count))
    return entries


def open_file_details(root: int, count_in: Callable[[str], int], *, certain: int) -> int:
    """Adds up what the kernel tells of each open file of all processes below one.

    Args:
        root: The first process.
        count_in: Gets the path of a file of /proc/PID/fdinfo.
        certain: As many are enough; who has more open files than can be looked at counts as one who has as many.
    """
    count = looked_at = 0
    for process in processes_below(root):
        place = f"/proc/{process}/fdinfo"
        try:
            names = os.listdir(place)
        except OSError:
            continue
        for name in names:
            looked_at += 1
            count += count_in(f"{place}/{name}")
            if count >= certain or looked_at >= _MOST_LOOKED_AT:
                return max(count, certain)
    return count


def waiting_in_sockets(path: str) -> int:
    """Returns how many descriptors wait in a socket."""
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(b"scm_fds:"):
                    return int(line.split()[1])
    except OSError:
        # It was closed meanwhile.
        return 0
    return 0


def watched_by_epoll(path: str) -> int:
    """Returns how many files an epoll instance watches."""
    try:
        with open(path, "rb") as file:
            return sum(line.startswith(b"tfd:") for line in file)
    except OSError:
        return 0


class DescriptorRoom:
    """Keeps room for descriptors on their way over unix sockets, where all sandboxes have the manager's own user.

    The kernel counts them for each user, and lets a process send more while the count is below that process's own
    limit of open files. Commands have a lower limit than the manager, so they usually leave room. Processes that pass
    that check at the same moment can go beyond it together: then the sandbox that holds most of them is found, and
    its commands end.
    """

    def __init__(self, takers: Takers) -> None:
        """Args: takers: The sandboxes that can hold it."""
        self._takers = takers

    async def make(self) -> None:
        """Ends the commands of the sandbox that has most descriptors on their way, if any has, unless that happens."""
        await self._takers.end_greatest("descriptors_in_flight", descriptors_in_flight, _MOST_DESCRIPTORS)


def descriptors_in_flight(root: int) -> int:
    """Returns how many descriptors wait in the sockets of all processes below one, up to `_MOST_DESCRIPTORS` and more.

    Sockets that are on their way themselves are not seen, so it may be too few, but not none.
    """
    return open_file_details(root, waiting_in_sockets, certain=_MOST_DESCRIPTORS)


@cache
def _trial() -> tuple[select.epoll, int]:
    """Returns what a watch is tried with. It is kept: there is a trial before each command."""
    return select.epoll(), os.pipe()[0]


def is_there_room() -> bool:
    """Returns whether this user may watch one more file."""
    watcher, file = _trial()
    try:
        watcher.register(file, select.EPOLLIN)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    watcher.unregister(file)
    return True


class EpollRoom:
    """Keeps room for files that are watched by epoll, where all sandboxes have the manager's own user.

    The kernel has one number of them for each user, and one process can take it all. Then no event loop of that user
    takes a further file: commands fail, and so would the manager, whose own loop therefore does without
    (`managers.event_loop`). Before a command starts it is tried whether there is room; if not, the sandbox that
    watches most is found, and its commands end.
    """

    def __init__(self, takers: Takers, is_there: Callable[[], bool] = is_there_room) -> None:
        """Args: takers: The sandboxes that can hold it. is_there: Whether there is room."""
        self._takers = takers
        self._is_there = is_there

    async def make(self) -> None:
        """Returns at once if there is room. Else ends commands of the greatest taker, and waits for a while."""
        if self._is_there():
            return
        await self._takers.end_greatest("epoll_watches", watches, _MOST_WATCHES)
        with anyio.move_on_after(_ROOM_SECONDS):
            while not self._is_there():  # noqa: ASYNC110 - nothing tells when there is some again
                await anyio.sleep(_LOOK_SECONDS)


def watches(root: int) -> int:
    """Returns how many files all processes below one watch by epoll, up to `_MOST_WATCHES` and more."""
    return open_file_details(root, watched_by_epoll, certain=_MOST_WATCHES)
