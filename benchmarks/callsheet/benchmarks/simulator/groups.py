"""Groups of siblings: when enough of them have finished, the others are redundant."""

from __future__ import annotations

from collections import Counter, defaultdict

from callsheet.benchmarks.simulator.closed_loop import Progress
from callsheet.benchmarks.simulator.scenario import Rollout, ScenarioJob

_Group = tuple[str, str]  # job, group


class Groups:
    """Counts who has finished, by group and by job."""

    def __init__(self, jobs: tuple[ScenarioJob, ...]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._finished: Counter[_Group] = Counter()
        self._complete: defaultdict[str, set[str]] = defaultdict(set)
        self._members: defaultdict[_Group, list[Progress]] = defaultdict(list)

    def arrived(self, progress: Progress) -> None:
        """Takes note of a trajectory that arrived."""
        rollout = progress.live.rollout
        job = self._jobs[rollout.job]
        if job.quorum or job.groups_needed:
            self._members[rollout.job, rollout.group].append(progress)

    def redundant(self, rollout: Rollout) -> bool:
        """Whether a trajectory is not needed any more."""
        job, complete = self._jobs[rollout.job], self._complete[rollout.job]
        if job.groups_needed and len(complete) >= job.groups_needed:
            return True
        return bool(job.quorum) and rollout.group in complete

    def finished(self, progress: Progress) -> list[Progress]:
        """Takes note of a trajectory that finished; returns those that have become redundant by it."""
        rollout = progress.live.rollout
        job = self._jobs[rollout.job]
        if not job.quorum and not job.groups_needed:
            return []
        group = (rollout.job, rollout.group)
        self._finished[group] += 1
        if self._finished[group] < (job.quorum or job.group_size):
            return []
        complete = self._complete[rollout.job]
        complete.add(rollout.group)
        if job.groups_needed and len(complete) >= job.groups_needed:
            of_job = [members for (name, _), members in self._members.items() if name == rollout.job]
            return [member for members in of_job for member in members if member.live.ended_at < 0]
        return [member for member in self._members.pop(group) if member.live.ended_at < 0]
