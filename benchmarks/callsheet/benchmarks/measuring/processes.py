"""What processes used: processor time, and how often they were woken and called the system."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import anyio
import anyio.to_thread
import psutil

_VOLUNTARY = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)
_READS_AND_WRITES = re.compile(r"^sysc[rw]: (\d+)$", re.MULTILINE)
_EVENTS = "raw_syscalls:sys_enter,task-clock"
_PERF_MARGIN_S = 20.0
# Commands and sandboxes that come and go are younger.
_SETTLED_S = 1.0


@dataclass(frozen=True, slots=True)
class Use:
    """What a process has used itself so far.

    Attributes:
        cpu_s: CPU seconds of all its threads.
        wake_ups: Times that a thread of it that is there now has waited, which are voluntary changes of context.
    """

    cpu_s: float
    wake_ups: int


def use_of(pid: int) -> Use:
    """Reads what a process has used."""
    times = psutil.Process(pid).cpu_times()
    return Use(times.user + times.system, sum(_sums_of(pid, "status", _VOLUNTARY)))


def _sums_of(pid: int, name: str, pattern: re.Pattern[str]) -> Iterable[int]:
    """The sum of what a pattern finds, by thread."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            yield sum(map(int, pattern.findall((thread / name).read_text())))


def tree_cpu_s(processes: Iterable[psutil.Process]) -> float:
    """CPU seconds of processes, of those below them, and of those below that have ended."""
    total = 0.0
    for process in processes:
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += sum(each.cpu_times()[:4])
    return total


@cache
def system_calls_counted() -> str:
    """Which system calls `count_calls` counts: all where `perf` works, else those that read and write."""
    with suppress(OSError):
        if subprocess.run(["perf", "stat", "-e", _EVENTS, "true"], capture_output=True, check=False).returncode == 0:
            return "all"
    return "reads and writes"


@dataclass(frozen=True, slots=True)
class Counted:
    """What processes did for a while.

    Attributes:
        calls: System calls.
        cpu_s: CPU seconds, those of processes that began and ended meanwhile too; None without `perf`.
    """

    calls: int
    cpu_s: float | None = None


def _settled(below: int) -> list[int]:
    """The processes below one that stay: what they start meanwhile is counted with them."""
    began_before, found = time.time() - _SETTLED_S, []
    for process in psutil.Process(below).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.create_time() < began_before:
                found.append(process.pid)
    return found


def _counted(field: bytes) -> float:
    """A number of `perf`; 0 where the processes had ended before it looked."""
    return 0.0 if field.startswith(b"<") else float(field)


async def count_calls(processes: Mapping[str, int], below: int, seconds: float) -> dict[str, Counted]:
    """Counts the system calls of processes for so long, by name; with "rest", all that is below one of them.

    Without `perf` there is no rest: nobody can tell what ended meanwhile.
    """
    found: dict[str, Counted] = {}
    if system_calls_counted() != "all":
        before = {name: sum(_sums_of(pid, "io", _READS_AND_WRITES)) for name, pid in processes.items()}
        await anyio.sleep(seconds)
        for name, pid in processes.items():
            found[name] = Counted(sum(_sums_of(pid, "io", _READS_AND_WRITES)) - before[name])
        return found

    async def count(name: str, pids: Iterable[int], *own: str) -> None:
        which = ("-p", ",".join(map(str, pids)), *own)
        done = await anyio.run_process(["perf", "stat", "-x,", "-e", _EVENTS, *which, "--", "sleep", str(seconds)])
        # A thread that has just ended gets a line of words.
        calls, clock_ms = (_counted(line.split(b",")[0]) for line in done.stderr.splitlines() if line.count(b",") > 3)
        found[name] = Counted(round(calls), clock_ms / 1e3)

    rest = _settled(below)
    with anyio.fail_after(seconds + _PERF_MARGIN_S):
        async with anyio.create_task_group() as tasks:
            for name, pid in processes.items():
                tasks.start_soon(count, name, [pid], "--no-inherit")
            if rest:
                tasks.start_soon(count, "rest", rest)
    return found
