"""The description of a machine, from a machine made of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from callsheet.managers.node import describe_node, parse_core_list, usable_memory_mib
from callsheet.managers.settings import ManagerSettings
from callsheet.v1 import manager_service_pb2

GIB_KB = 1 << 20


def machine(root: Path, numa: dict[int, str], memory_kb: int = 16 * GIB_KB, limit: str | None = None) -> Path:
    """Writes the files that describe a machine, and returns their root."""
    for number, cores in numa.items():
        directory = root / f"sys/devices/system/node/node{number}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(f"{cores}\n")
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemFree:  1 kB\nMemTotal:       {memory_kb} kB\n")
    if limit is not None:
        (root / "sys/fs/cgroup").mkdir(parents=True)
        (root / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
    return root


def groups(node: manager_service_pb2.NodeSpec) -> list[list[int]]:
    return [list(group.cores) for group in node.numa_nodes]


def test_cores_are_grouped_by_numa_node(tmp_path: Path) -> None:
    root = machine(tmp_path, {0: "0-3,8-11", 1: "4-7,12-15", 10: "16", 2: ""})
    node = describe_node(node_id="n", allowed_cores=range(17), root=root)
    assert groups(node) == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15], [16]]
    assert "cpu" not in node.capacity


def test_only_allowed_cores_count(tmp_path: Path) -> None:
    root = machine(tmp_path, {0: "0-3", 1: "4-7"})
    assert groups(describe_node(allowed_cores={2, 5, 6}, root=root)) == [[2], [5, 6]]
    assert groups(describe_node(allowed_cores={1, 2, 5, 6}, cpus=3, root=root)) == [[1, 2], [5]]
    assert groups(describe_node(allowed_cores={1, 9}, root=root)) == [[1], [9]]


def test_a_machine_that_tells_no_topology_is_one_group(tmp_path: Path) -> None:
    assert groups(describe_node(allowed_cores={3, 1}, root=machine(tmp_path, {}))) == [[1, 3]]


@pytest.mark.parametrize("cpus", [0, -1, 3])
def test_an_impossible_number_of_cores_is_refused(tmp_path: Path, cpus: int) -> None:
    with pytest.raises(ValueError, match=f"cpus: {cpus} must be between 1 and 2"):
        describe_node(allowed_cores={0, 1}, cpus=cpus, root=machine(tmp_path, {}))


@pytest.mark.parametrize(
    ("memory_kb", "limit", "expected_mib"),
    [
        (16 * GIB_KB, None, 16_384 - 1_638),
        (16 * GIB_KB, "max", 16_384 - 1_638),
        (16 * GIB_KB, str(2 << 30), 2_048 - 512),
        (2 * GIB_KB, str(64 << 30), 2_048 - 512),
        (GIB_KB // 2, None, 256),
    ],
)
def test_memory_is_what_machine_and_container_leave(
    tmp_path: Path, memory_kb: int, limit: str | None, expected_mib: int
) -> None:
    assert usable_memory_mib(machine(tmp_path, {}, memory_kb, limit)) == expected_mib


def test_a_given_memory_size_counts(tmp_path: Path) -> None:
    assert dict(describe_node(memory_mib=77, root=tmp_path).capacity) == {"memory": 77}
    with pytest.raises(ValueError, match="memory_mib: -1"):
        describe_node(memory_mib=-1, root=tmp_path)


def test_core_lists_are_read_as_the_kernel_writes_them() -> None:
    assert parse_core_list("0-2,5,7-8\n") == {0, 1, 2, 5, 7, 8}
    assert parse_core_list("\n") == set()


def test_this_machine_is_described_the_same_each_time() -> None:
    node = describe_node()
    assert node == describe_node()
    assert node.node_id
    assert sorted(core for group in groups(node) for core in group) == sorted(os.sched_getaffinity(0))
    assert node.capacity["memory"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheduler_address": ""}, "scheduler_address: ''"),
        ({"manager_id": ""}, "manager_id: ''"),
        ({"node": manager_service_pb2.NodeSpec()}, "node.node_id: ''"),
        ({"drain_timeout_s": -1}, "drain_timeout_s: -1 must be 0 or more"),
        ({"max_attempts": 0}, "max_attempts: 0 must be above 0"),
    ],
)
def test_settings_name_what_is_wrong(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {
        "scheduler_address": "localhost:1",
        "manager_id": "m",
        "node": manager_service_pb2.NodeSpec(node_id="n"),
    }
    with pytest.raises(ValueError, match=message):
        ManagerSettings(**{**good, **change})  # type: ignore[arg-type]


def test_gpus_are_registered_where_there_are_some() -> None:
    assert dict(describe_node(memory_mib=1, gpus=2).capacity) == {"memory": 1, "gpu": 2}
    assert dict(describe_node(memory_mib=1).capacity) == {"memory": 1}
