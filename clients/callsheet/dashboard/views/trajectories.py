"""Trajectories of a job, page by page: all, of a group, or of a step."""

from __future__ import annotations

from callsheet.dashboard.blocks import Notice, View, link
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.views.past import trajectory_table
from callsheet.v1 import admin_service_pb2


async def look(asked: Asked) -> View:
    """Asks for one page of trajectories, the newest policy version first."""
    request = admin_service_pb2.ListTrajectoryHistoryRequest(job_id=asked.of("job"), page_token=asked.of("after"))
    return trajectories_view(asked.of("job"), await asked.source.list_trajectory_history(request), asked.now)


def trajectories_view(job: str, told: admin_service_pb2.ListTrajectoryHistoryResponse, now: float) -> View:
    """Returns the page."""
    more = link("trajectories", "Older ones", job=job, after=told.next_page_token) if told.next_page_token else None
    blocks = [
        *([Notice("This job is closed.")] if told.job_closed else []),
        trajectory_table("Trajectories, the newest version first", job, told.trajectories, now, more),
    ]
    return View(f"Trajectories of {plain_line(job)}", blocks, trail=(link("job", job=job),))
