"""Abilities of this machine's control groups, in words for the manager's registration."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from callsheet.managers.sandbox.cgroups.layout import GroupLayout
from callsheet.managers.sandbox.cgroups.limits import SOCKET_MEMORY_FILE


class Form(Enum):
    """How sandboxes are limited, the best first."""

    V2 = "v2"
    HYBRID = "hybrid"
    AFFINITY = "affinity"


def form_of(layout: GroupLayout | None) -> Form:
    """Returns the form of a layout. A version 2 tree without controllers limits nothing, so it is AFFINITY."""
    if layout is None or not layout.controllers:
        return Form.AFFINITY
    own_trees = [name for name in layout.controllers if layout.own_tree(name) is not None]
    return Form.HYBRID if own_trees else Form.V2


def limit_capabilities(layout: GroupLayout | None) -> Mapping[str, str]:
    """Returns "yes" or "no" for each thing that an action may rely on, and the form under "cgroups".

    hard_cpuset: commands cannot leave their cores, whatever they call; without it they are pinned from outside.
    quota: a command can be bounded to less than all time of its cores.
    memory_hard, pids_hard: limits hold for a sandbox as a whole.
    freeze: what is idle gets no CPU, not even after a signal.
    psi: stalls for lack of CPU, memory and I/O can be read for each sandbox.
    cpu_accounting: CPU seconds include processes that nobody waited for.
    """
    controllers = layout.controllers if layout is not None else {}
    able = {
        "hard_cpuset": "cpuset" in controllers,
        "quota": "cpu" in controllers,
        "memory_hard": "memory" in controllers,
        "pids_hard": "pids" in controllers,
        "freeze": layout is not None,
        "psi": layout is not None and _has_pressure(layout),
        "cpu_accounting": layout is not None,
    }
    return {"cgroups": form_of(layout).value, **{name: "yes" if value else "no" for name, value in able.items()}}


def _has_pressure(layout: GroupLayout) -> bool:
    """The file is there on every kernel that has pressure stall information; it can be read where that is on."""
    try:
        return (layout.core / "cpu.pressure").read_text().startswith("some")
    except OSError:
        return False


def bounds_socket_memory(layout: GroupLayout | None) -> bool:
    """Returns whether the buffers of a sandbox's sockets are bounded: with its memory, or in version 1 beside it."""
    memory = layout.controllers.get("memory") if layout is not None else None
    if layout is None or memory is None:
        return False
    return layout.own_tree("memory") is None or (memory / SOCKET_MEMORY_FILE).exists()
