"""A trainer that forms a transfer group with engines and broadcasts files of safetensors to it, one after the other.

The group is formed as trainers do it who keep their own default group: see `join_group`.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch.distributed as dist
from callsheet.managers.inference.torch_engine.weight_sources import join_group
from safetensors.torch import load_file

TIMEOUT = timedelta(seconds=60)


def main(port: str, group_name: str, world_size: str, *files: str) -> None:
    """Broadcasts the tensors of each file in the order of their names."""
    group = join_group(
        backend="gloo",
        address="127.0.0.1",
        port=int(port),
        world_size=int(world_size),
        rank=0,
        group_name=group_name,
        timeout=TIMEOUT,
    )
    for file in files:
        for _, values in sorted(load_file(file).items()):
            dist.broadcast(values, src=0, group=group)
    dist.destroy_process_group(group)


if __name__ == "__main__":
    main(*sys.argv[1:])
