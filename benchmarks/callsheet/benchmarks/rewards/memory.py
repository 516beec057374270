"""Memory of worker processes, sampled while they serve."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio

_EVERY_S = 0.05
_log = logging.getLogger(__name__)


def resident_bytes(pids: Iterable[int], *, shared_memory: bool = True) -> int:
    """Memory of some processes together; what several share counts once.

    Args:
        pids: The processes.
        shared_memory: Whether to count shared memory, where the weights lie.
    """
    return sum(_proportional_bytes(pid, shared_memory=shared_memory) for pid in pids)


def _proportional_bytes(pid: int, *, shared_memory: bool) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        _log.info("process %d is gone", pid)
        return 0
    counted = ("Pss_Anon:", "Pss_File:", *(("Pss_Shmem:",) if shared_memory else ()))
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(counted))


class MemorySampler:
    """Samples for as long as it runs.

    Attributes:
        peak: The most bytes of any sample.
        samples: How many.
    """

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """Takes what names the processes."""
        self.peak = 0
        self.samples = 0
        self._pids = pids

    async def run(self) -> None:
        """Samples until it is cancelled."""
        while True:
            found = await anyio.to_thread.run_sync(resident_bytes, list(self._pids()))
            self.peak = max(self.peak, found)
            self.samples += 1
            await anyio.sleep(_EVERY_S)
