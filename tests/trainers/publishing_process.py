"""One of two processes of a training whose weights nobody takes: prints what its callback raised.

python -m tests.trainers.publishing_process RANK FILE
"""

from __future__ import annotations

import sys
from datetime import timedelta
from types import SimpleNamespace

import torch
from callsheet.client import ClientOptions
from callsheet.integrations.trl import CallsheetRollout, PublishWeights
from torch import distributed

from tests.trainers.notes import NoteTasks

NOBODY = "127.0.0.1:1"
"""Where no scheduler answers."""


def main() -> None:
    """Joins the other process and publishes."""
    rank, file = int(sys.argv[1]), sys.argv[2]
    distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=timedelta(minutes=5)
    )
    rollout = CallsheetRollout(NOBODY, NoteTasks(), job_id="two", options=ClientOptions(connect_timeout_s=1.0))
    publish = PublishWeights(rollout, canary=False)
    state = SimpleNamespace(is_world_process_zero=rank == 0, global_step=1)
    try:
        publish.on_step_end(None, state, None, model=torch.nn.Linear(2, 2))
    except Exception as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")


if __name__ == "__main__":
    main()
