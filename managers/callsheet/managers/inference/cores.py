"""Which cores an engine's compute threads use.

The scheduler reserves a count of cores for a hosted service and never grants them to attempts. By convention they are
the last of the node's core list.
"""

from __future__ import annotations

from callsheet.v1 import manager_service_pb2


def reserved_cores(node: manager_service_pb2.NodeSpec, threads: int) -> tuple[int, ...]:
    """Returns the last `threads` cores of a node, in the order of its list.

    Raises:
        ValueError: The node has fewer cores than threads, or `threads` is below 1.
    """
    cores = [core for numa_node in node.numa_nodes for core in numa_node.cores]
    if not 1 <= threads <= len(cores):
        raise ValueError(f"threads is {threads}; it must be 1 to the number of cores of the node ({len(cores)})")
    return tuple(cores[-threads:])
