"""Cores shared by the plainest means: every rate is worked out anew at every change. Slow, and easy to believe."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from callsheet.benchmarks.simulator.policy import Lane


@dataclass(slots=True)
class Job:
    """A command, with what happens to it at which time."""

    arrives: float
    cpu_s: float
    width: float
    cap: float
    lanes: list[tuple[float, Lane]]  # from when on it is in which lane, the first from its arrival
    attained: float = 0.0
    ended: float = inf

    def lane(self, now: float) -> Lane:
        """Its lane at that time."""
        return [lane for since, lane in self.lanes if since <= now][-1]


def ends(jobs: list[Job], cores: float) -> list[float]:
    """When each job ends on a node with so many cores."""
    now = 0.0
    changes = sorted({job.arrives for job in jobs} | {since for job in jobs for since, _ in job.lanes})
    while any(job.ended == inf for job in jobs):
        live = [job for job in jobs if job.arrives <= now and job.ended == inf]
        rates = _rates(live, cores, now)
        next_change = min((at for at in changes if at > now), default=inf)
        until = min([next_change, *(_end(job, rate, now) for job, rate in zip(live, rates, strict=True))])
        for job, rate in zip(live, rates, strict=True):
            job.attained += rate * (until - now)
            if job.cpu_s - job.attained <= 1e-12 * max(1.0, job.cpu_s):
                job.ended = until
        now = until
    return [job.ended for job in jobs]


def water_filling(jobs: list[Job], cores: float) -> list[float]:
    """Everybody gets its cap, or a level times its width where that is less; the level hands out all cores."""
    left, rates = cores, {}
    todo = sorted(jobs, key=lambda job: job.cap / job.width)
    while todo:
        job = todo.pop(0)
        share = left * job.width / (job.width + sum(other.width for other in todo))
        rates[id(job)] = min(job.cap, share)
        left -= rates[id(job)]
    return [rates[id(job)] for job in jobs]


def _rates(live: list[Job], cores: float, now: float) -> list[float]:
    foreground = [job for job in live if job.lane(now) is Lane.FOREGROUND]
    background = [job for job in live if job.lane(now) is Lane.BACKGROUND]
    fast = water_filling(foreground, cores)
    slow = water_filling(background, max(0.0, cores - sum(fast)))
    rate = dict(zip(map(id, foreground + background), fast + slow, strict=True))
    return [rate.get(id(job), 0.0) for job in live]


def _end(job: Job, rate: float, now: float) -> float:
    return now + (job.cpu_s - job.attained) / rate if rate > 0 else inf
