from __future__ import annotations

import pytest
from callsheet.managers.inference.cores import reserved_cores
from callsheet.v1 import manager_service_pb2

NODE = manager_service_pb2.NodeSpec(
    node_id="n",
    numa_nodes=[manager_service_pb2.NumaNode(cores=[0, 2, 4]), manager_service_pb2.NumaNode(cores=[1, 3])],
)


@pytest.mark.parametrize(("threads", "cores"), [(1, (3,)), (2, (1, 3)), (3, (4, 1, 3)), (5, (0, 2, 4, 1, 3))])
def test_the_last_cores_of_the_node(threads: int, cores: tuple[int, ...]) -> None:
    assert reserved_cores(NODE, threads) == cores


@pytest.mark.parametrize("threads", [0, -1, 6])
def test_more_than_there_are_or_none(threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads is {threads}.*5"):
        reserved_cores(NODE, threads)
