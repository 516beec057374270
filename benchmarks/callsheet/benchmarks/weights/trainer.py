"""A process that broadcasts a file of tensors to all engines, as the trainer's rank 0 does.

python -m callsheet.benchmarks.weights.trainer PORT GROUP WORLD_SIZE FILE
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch.distributed as dist
from callsheet.managers.inference.torch_engine.transfer_group import join_group
from safetensors.torch import load_file

TIMEOUT = timedelta(seconds=120)


def main(port: str, group_name: str, world_size: str, file: str) -> None:
    """Forms the group, and broadcasts the tensors in the order of their names."""
    group = join_group(
        backend="gloo",
        address="127.0.0.1",
        port=int(port),
        world_size=int(world_size),
        rank=0,
        group_name=group_name,
        timeout=TIMEOUT,
    )
    for _, values in sorted(load_file(file).items()):
        dist.broadcast(values, src=0, group=group)
    dist.destroy_process_group(group)


if __name__ == "__main__":
    main(*sys.argv[1:])
