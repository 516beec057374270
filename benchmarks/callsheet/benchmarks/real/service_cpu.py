"""What the service itself uses of the cores that commands share."""

from __future__ import annotations

import psutil


class ServiceCpu:
    """CPU time of the processes that serve, from now on: this one, and all below it that are there now.

    Sandboxes that come later are left out, and with them their commands: outcomes tell what those used. Nobody who
    serves waits for a sandbox that is killed as a whole. Sums over ended children hold some commands and lack others.
    """

    def __init__(self) -> None:
        this = psutil.Process()
        self._began = {process: _times(process) for process in (this, *this.children(recursive=True))}

    def own_s(self) -> float:
        """Seconds that these processes used themselves."""
        return sum(now[0] - began[0] for now, began in self._pairs())

    def with_helpers_s(self) -> float:
        """Seconds that they used themselves, and their ended children for them. Right only where no command ran."""
        return sum(sum(now) - sum(began) for now, began in self._pairs())

    def _pairs(self) -> list[tuple[tuple[float, float], tuple[float, float]]]:
        return [(_times(process), began) for process, began in self._began.items() if process.is_running()]


def _times(process: psutil.Process) -> tuple[float, float]:
    """CPU seconds of a process, and of its ended children that were waited for."""
    times = process.cpu_times()
    return times.user + times.system, times.children_user + times.children_system
