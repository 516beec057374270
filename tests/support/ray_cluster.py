"""A Ray cluster of several raylets on this machine, in a process of its own that takes a line of JSON and gives one.

Ray leaves sockets and processes for its interpreter to clean up, which tests take for errors.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from tests.support.ports import free_port

_ROOT: Final = Path(__file__).resolve().parents[2]
MEMORY_MIB: Final = 1000
"""What each raylet says that its machine has, beside one core."""
_LEAN: Final = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}
_GROWS: Final = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_enable_autoscaler_v2": "0"}
TRAINER: Final = {"pool": "trainer"}
"""Labels of the head's machine."""
_HAS: Final[dict[str, Any]] = {"num_cpus": 1, "memory": MEMORY_MIB << 20, "object_store_memory": 80 << 20}


class RayCluster:
    """The cluster, from a test's side."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = str(self._answer())

    def ask(self, *words: str) -> Any:
        """Has the cluster do something: what `_serve` knows."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def books(self) -> dict[str, int]:
        """Cores in all, cores that are free, and placement groups."""
        books: dict[str, int] = self.ask("books")
        return books

    def servers(self) -> list[psutil.Process]:
        """Its control store and its raylets."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        return [each for each in below if each.name() in ("gcs_server", "raylet")]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the cluster's process has ended"
        return json.loads(line)


def memory_has(pid: int, wanted: bytes) -> bool:
    """Whether some bytes are in the memory that a process may write to."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            start, end = (int(each, 16) for each in span.split("-"))
            if not rights.startswith("rw") or "/dev/shm" in line:
                continue
            memory.seek(start)
            with contextlib.suppress(OSError):
                if wanted in memory.read(end - start):
                    return True
    return False


@contextmanager
def ray_cluster(nodes: int, most: int = 0) -> Iterator[RayCluster]:
    """Runs a cluster for the length of a `with` block.

    Args:
        nodes: So many there are.
        most: Up to so many there are once Ray's autoscaler finds that they are needed; 0 for those that there are.
    """
    command = [sys.executable, "-m", "tests.support.ray_cluster", str(nodes), str(most)]
    told = {**os.environ, **_LEAN, **(_GROWS | {"PYTHONPATH": str(_ROOT)} if most else {})}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=told) as process:
        try:
            yield RayCluster(process)
        finally:
            below = psutil.Process(process.pid).children(recursive=True)
            # Its end is the order to shut down.
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)
            # An autoscaler leaves its machines behind.
            for each in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()


def _serve(nodes: int, most: int) -> None:
    import ray
    from ray.cluster_utils import Cluster

    from tests.support.ray_machines import HEAD_VARIABLES, write_config

    # Ray prints as well; that goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(answer: object) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    head = {**_HAS, "include_dashboard": False, "include_log_monitor": False, "no_monitor": not most, "labels": TRAINER}
    with tempfile.TemporaryDirectory() as directory:
        if most:
            config, port = Path(directory) / "machines.json", free_port()
            address = f"{ray.util.get_node_ip_address()}:{port}"
            write_config(config, address, {"CPU": 1, "memory": MEMORY_MIB << 20}, most - nodes)
            head |= {"gcs_server_port": port, "autoscaling_config": str(config), "env_vars": HEAD_VARIABLES}
        _serve_cluster(Cluster(initialize_head=True, head_node_args=head), nodes, tell)


def _serve_cluster(cluster: Any, nodes: int, tell: Callable[[object], None]) -> None:
    import ray
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    for _ in range(nodes - 1):
        cluster.add_node(**_HAS)
    ray.init(address=cluster.address, log_to_driver=False)
    tell(cluster.address)
    trainer = None
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
        elif word == "train":
            trainer = placement_group([{"CPU": 1}], bundle_label_selector=[TRAINER])
            tell(trainer.wait(30) and placement_group_table(trainer)["bundles_to_node_id"][0])
        elif word == "end training":
            tell(remove_placement_group(trainer))
        elif word == "logs":
            tell(f"{cluster.head_node.get_session_dir_path()}/logs")
        else:
            groups = [each for each in placement_group_table().values() if each["state"] != "REMOVED"]
            cores: Any = ray.cluster_resources()
            free: Any = ray.available_resources()
            tell({"cores": int(cores.get("CPU", 0)), "free": int(free.get("CPU", 0)), "groups": len(groups)})
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
