"""Describes this machine to the scheduler."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Iterable
from pathlib import Path

from callsheet.v1 import manager_service_pb2

MIB = 1 << 20


def describe_node(
    *,
    node_id: str | None = None,
    cpus: int | None = None,
    memory_mib: int | None = None,
    gpus: int = 0,
    allowed_cores: Collection[int] | None = None,
    root: Path = Path("/"),
) -> manager_service_pb2.NodeSpec:
    """Returns the description of this machine; managers that run on it with the same arguments declare it alike.

    Args:
        node_id: Its name; the host name by default.
        cpus: Take only the first this many of the cores; all by default.
        memory_mib: Memory for actions in MiB; by default what the machine (or its container) has, less a margin.
        gpus: GPUs for actions that ask for some.
        allowed_cores: The cores this process may use; by default those of its affinity mask.
        root: Where "proc" and "sys" are.

    Raises:
        ValueError: `cpus` is below 1 or more than there are, `memory_mib` is negative, or no memory size can be read.
    """
    cores = sorted(os.sched_getaffinity(0) if allowed_cores is None else allowed_cores)
    if cpus is not None:
        if not 1 <= cpus <= len(cores):
            raise ValueError(f"cpus: {cpus} must be between 1 and {len(cores)}, the cores this process may use")
        cores = cores[:cpus]
    if memory_mib is None:
        memory_mib = usable_memory_mib(root)
    elif memory_mib < 0:
        raise ValueError(f"memory_mib: {memory_mib} must be 0 or more")
    return manager_service_pb2.NodeSpec(
        node_id=node_id or socket.gethostname(),
        capacity={"memory": memory_mib} | ({"gpu": gpus} if gpus else {}),
        numa_nodes=[manager_service_pb2.NumaNode(cores=group) for group in group_by_numa(cores, root)],
    )


def group_by_numa(cores: Iterable[int], root: Path = Path("/")) -> list[list[int]]:
    """Returns cores by NUMA node, in the order of the nodes; cores that no node lists come last, as one group."""
    left = set(cores)
    groups: list[list[int]] = []
    for directory in _numa_directories(root):
        group = left & parse_core_list((directory / "cpulist").read_text())
        left -= group
        groups.append(sorted(group))
    groups.append(sorted(left))
    return [group for group in groups if group]


def numa_node_by_core(root: Path = Path("/")) -> dict[int, int]:
    """Returns the number of each core's NUMA node; cores that no node lists are left out."""
    return {
        core: int(path.name.removeprefix("node"))
        for path in _numa_directories(root)
        for core in parse_core_list((path / "cpulist").read_text())
    }


def _numa_directories(root: Path) -> list[Path]:
    parent = root / "sys/devices/system/node"
    numbered = [(path, re.fullmatch(r"node(\d+)", path.name)) for path in parent.glob("node*")]
    found = [(int(match[1]), path) for path, match in numbered if match and (path / "cpulist").is_file()]
    return [path for _, path in sorted(found)]


def parse_core_list(text: str) -> set[int]:
    """Returns the core ids of a kernel list such as "0-3,8".

    Raises:
        ValueError: The text is not such a list.
    """
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def usable_memory_mib(root: Path = Path("/")) -> int:
    """Returns the MiB that actions may use: what there is, less a tenth (at least 512 MiB, at most half) for the rest.

    Raises:
        ValueError: /proc/meminfo has no MemTotal.
    """
    total = min(filter(None, (_machine_memory_bytes(root), _container_limit_bytes(root)))) // MIB
    margin = min(max(512, total // 10), total // 2)
    return total - margin


def _machine_memory_bytes(root: Path) -> int:
    path = root / "proc/meminfo"
    match = re.search(r"^MemTotal:\s+(\d+) kB$", path.read_text(), re.MULTILINE)
    if match is None:
        raise ValueError(f"memory_mib: {path} has no MemTotal; give the size")
    return int(match[1]) * 1024


def _container_limit_bytes(root: Path) -> int | None:
    """Returns the memory limit of the cgroup mounted at the root, as containers see it; None if there is none."""
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        path = root / name
        if path.is_file():
            text = path.read_text().strip()
            return int(text) if text.isdecimal() else None
    return None
