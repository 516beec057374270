"""What a job knows of its trajectories and groups, for comparisons of two schedulers."""

from __future__ import annotations

from typing import Any

from callsheet.scheduler.core.state.entities import Job


def closed_view(job: Job) -> dict[str, Any]:
    """All of it that a restart must give back; when things ended is left out."""
    return {
        "open": sorted(job.trajectories),
        "closed": dict(sorted(job.closed_trajectories.items())),
        "closing": sorted(job.closing),
        "groups": {
            group_id: (
                (group.size, group.quorum, group.completed, group.cancelled, group.unfinished),
                sorted(group.members),
                sorted(group.lost),
            )
            for group_id, group in sorted(job.groups.items())
        },
        "kept": sorted(
            (sorted(each.trajectory_ids), each.group_id, each.size) for each in job.closed if not each.reopened
        ),
        "counts": (
            job.open_trajectories,
            job.closed_count,
            job.completed_trajectories,
            job.spec_bytes,
            job.finished_bytes,
            len(job.forgotten),
        ),
    }
