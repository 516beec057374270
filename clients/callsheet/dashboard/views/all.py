"""The views by the name of their page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from callsheet.dashboard.blocks import View
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.views import (
    action,
    closed_jobs,
    engines,
    group,
    job,
    manager,
    now,
    step,
    stuck,
    trajectories,
    trajectory,
    what_if,
)

VIEWS: Final[Mapping[str, Callable[[Asked], Awaitable[View]]]] = {
    "stuck": stuck.look,
    "now": now.look,
    "job": job.look,
    "closed": closed_jobs.look,
    "trajectories": trajectories.look,
    "trajectory": trajectory.look,
    "group": group.look,
    "step": step.look,
    "action": action.look,
    "manager": manager.look,
    "engines": engines.look,
    "what-if": what_if.look,
}
"""Views by the names of their pages."""
