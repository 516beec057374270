"""Decides if commands can be ranked on this machine: something must separate the lanes of node sharing."""

from __future__ import annotations

import os
from pathlib import Path

from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.sandbox.isolation.docker_engine.groups import container_layout
from callsheet.managers.sandbox.node_sharing.lanes import LaneMethod, lane_method
from callsheet.managers.sandbox.settings import Isolation


def ranking_problem(
    isolation: Isolation, *, delegated_group: Path | None = None, use_control_groups: bool = True
) -> str:
    """Returns why commands cannot be ranked, as a clause; empty if they can. May block for some milliseconds.

    Args:
        isolation: What keeps the sandboxes apart.
        delegated_group: See `SandboxSettings`.
        use_control_groups: See `SandboxSettings`.
    """
    in_containers = isolation is Isolation.DOCKER
    layout = None
    if use_control_groups:
        layout = container_layout(os.getpid()) if in_containers else probe_layout(delegated_group)
    weight_file = layout.weight_file("") if layout is not None else None
    if lane_method(weight_file, by_process=not in_containers) is not LaneMethod.NONE:
        return ""
    if in_containers:
        return "the control groups of containers cannot be written"
    return "there is no writable cpu control group, and this user may not change the priority of processes back"
