"""Describes the container of a sandbox. Pure: `engine` translates it for the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from callsheet.managers.sandbox.agent_client.program import AGENT_DIRECTORY, AGENT_START
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.files.root_filesystem import (
    FILES_PER_MIB,
    IMAGE_COMMAND_PATH,
    SHARED_MEMORY_MIB,
    TEMPORARY,
    WORK,
)
from callsheet.managers.sandbox.isolation.kernel_bounds import most_netlink_sockets

AGENT_INSIDE = "/run/callsheet/agent"
MANAGER_INSIDE = "/run/callsheet/manager"
MANAGER_LABEL = "callsheet.manager"
SANDBOX_LABEL = "callsheet.sandbox"
SOCKET_NAME = "socket"
FILTER_NAME = "filter"
ASKING_FILTER_NAME = "asking-filter"

_STAGES_INSIDE = "/opt/callsheet/stage"


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """A container to make.

    Attributes:
        name: Unique on the engine.
        image: A reference that the engine knows.
        command: Runs instead of whatever the image names.
        uid: User and group of everything inside.
        memory_bytes: Limit of memory, and of memory and swap together.
        processes: Limit of processes and threads.
        cores: It may use no others.
        memory_mounts: Options of each file system in memory, by path.
        read_only_mounts: Path inside by path outside.
        labels: For finding it again.
    """

    name: str
    image: str
    command: Sequence[str]
    uid: int
    memory_bytes: int
    processes: int
    cores: frozenset[int]
    memory_mounts: Mapping[str, str]
    read_only_mounts: Mapping[str, str]
    labels: Mapping[str, str]


def plan_container(
    spec: SandboxSpec,
    *,
    name: str,
    image: str,
    uid: int,
    directory: Path,
    stages: Sequence[Path],
    labels: Mapping[str, str],
) -> ContainerPlan:
    """Returns the container of a sandbox.

    Args:
        directory: Where the manager's socket and the filter are, on the engine's machine.
        stages: Directories to show.
    """
    mounts = {str(AGENT_DIRECTORY): AGENT_INSIDE, str(directory): MANAGER_INSIDE}
    mounts.update(zip(map(str, stages), stages_inside(stages), strict=True))
    words = (
        f"{MANAGER_INSIDE}/{SOCKET_NAME}",
        *(WORK, TEMPORARY),
        *(f"{MANAGER_INSIDE}/{name}" for name in (FILTER_NAME, ASKING_FILTER_NAME)),
        str(most_netlink_sockets(spec.memory_mib)),
    )
    return ContainerPlan(
        name=name,
        image=image,
        command=("python3", "-I", "-S", f"{AGENT_INSIDE}/{AGENT_START}", *words),
        uid=uid,
        memory_bytes=spec.memory_mib << 20,
        # One more for the agent.
        processes=spec.max_processes + 1,
        cores=spec.cores,
        memory_mounts={
            WORK: f"{_memory_options(spec.disk_mib)},mode=0755,uid={uid},gid={uid}",
            TEMPORARY: f"{_memory_options(spec.disk_mib)},mode=1777",
            "/dev/shm": f"{_memory_options(min(SHARED_MEMORY_MIB, spec.disk_mib))},mode=1777",
        },
        read_only_mounts=mounts,
        labels=labels,
    )


def stages_inside(stages: Sequence[Path]) -> list[str]:
    """Returns where the containers show the stages."""
    return [f"{_STAGES_INSIDE}/{index}" for index in range(len(stages))]


def command_defaults(image: Mapping[str, str], stages: Sequence[str]) -> dict[str, str]:
    """Returns the default environment of commands: the image's, with the sandbox's own places.

    Args:
        image: The variables that the image sets.
        stages: The directories inside in which commands find Python packages.
    """
    environment = {"PATH": IMAGE_COMMAND_PATH, "LANG": "C.UTF-8", **image}
    environment.update(HOME=TEMPORARY, TMPDIR=TEMPORARY, USER="sandbox")
    paths = [*stages, *filter(None, [image.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": ":".join(paths)} if paths else environment


def _memory_options(size_mib: int) -> str:
    return f"rw,exec,nosuid,nodev,size={size_mib}m,nr_inodes={size_mib * FILES_PER_MIB}"
