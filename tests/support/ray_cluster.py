"""A Ray cluster of several raylets on this machine, in a process of its own that takes a line of JSON and gives one.

Ray leaves sockets and processes for its interpreter to clean up, which tests take for errors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

MEMORY_MIB: Final = 1000
"""What each raylet says that its machine has, beside one core."""
_HAS: Final[dict[str, Any]] = {"num_cpus": 1, "memory": MEMORY_MIB << 20, "object_store_memory": 80 << 20}


class RayCluster:
    """The cluster, from a test's side."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = str(self._answer())

    def ask(self, *words: str) -> Any:
        """Has the cluster do something: "add", "remove" with a node's id, or "books"."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def books(self) -> dict[str, int]:
        """Cores in all, cores that are free, and placement groups."""
        books: dict[str, int] = self.ask("books")
        return books

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the cluster's process has ended"
        return json.loads(line)


@contextmanager
def ray_cluster(nodes: int) -> Iterator[RayCluster]:
    """Runs a cluster for the length of a `with` block."""
    command = [sys.executable, "-m", "tests.support.ray_cluster", str(nodes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield RayCluster(process)
        finally:
            # Its end is the order to shut down.
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)


def _serve(nodes: int) -> None:
    import ray
    from ray.cluster_utils import Cluster
    from ray.util.placement_group import placement_group_table

    # Ray prints as well; that goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(answer: object) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    cluster = Cluster(initialize_head=True, head_node_args={**_HAS, "include_dashboard": False})
    for _ in range(nodes - 1):
        cluster.add_node(**_HAS)
    ray.init(address=cluster.address, log_to_driver=False)
    tell(cluster.address)
    for line in sys.stdin:
        word, *rest = json.loads(line)
        if word == "add":
            tell(cluster.add_node(**_HAS).node_id)
        elif word == "workers":
            tell([node.node_id for node in cluster.worker_nodes])
        elif word == "remove":
            (node,) = [each for each in cluster.worker_nodes if each.node_id == rest[0]]
            cluster.remove_node(node, allow_graceful=False)
            tell(None)
        else:
            groups = [each for each in placement_group_table().values() if each["state"] != "REMOVED"]
            cores: Any = ray.cluster_resources()
            free: Any = ray.available_resources()
            tell({"cores": int(cores.get("CPU", 0)), "free": int(free.get("CPU", 0)), "groups": len(groups)})
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
