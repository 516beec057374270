"""The counts of failures in the log of verl's newer trainer, with a real queue of samples."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")

import ray
import torch
import transfer_queue
from callsheet.integrations.verl.step_counts import CountsFailures
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.agent_loop_tq import list_of_dict_to_tensordict

LOADED = """
import verl
from verl.trainer.ppo.v1 import get_trainer_cls
for mode in ("sync", "colocate_async", "separate_async"):
    print(get_trainer_cls(mode).__name__, [each.__name__ for each in get_trainer_cls(mode).__mro__][:2])
"""


class Computed:
    """Logs what any trainer logs."""

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], global_steps: int) -> None:
        metrics["training/global_step"] = global_steps


class Trainer(CountsFailures, Computed):
    """Has two samples of each prompt."""

    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(n=2)))


@pytest.fixture
def queue() -> Iterator[None]:
    # As many as its actors want; they need little of them.
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    try:
        transfer_queue.init()
        yield
        transfer_queue.close()
    finally:
        ray.shutdown()


def extra(failure: str = "", *, replaced: int = 0) -> dict[str, Any]:
    return {
        "callsheet_failed": float(bool(failure)),
        "callsheet_excluded": 0.0,
        "callsheet_failure": failure,
        "callsheet_replaced": replaced,
    }


@pytest.mark.usefixtures("queue")
def test_each_step_has_its_counts() -> None:
    # The second prompt has one sample of two: the other one was excluded. The last row only fills the batch up.
    told = {
        "a_b_0_0": extra(),
        "a_b_1_0": extra("ENV/no_server", replaced=2),
        "c_0_0": extra("POLICY/bad_report"),
        "c_0_1": {"of": "other loops"},
        "pad_0_0": extra("ENV/never_counted"),
    }
    tags = [{"status": "success", "is_padding": key.startswith("pad")} for key in told]
    fields = [{"responses": torch.tensor([1, 2]), "extra_fields": each} for each in told.values()]
    transfer_queue.kv_batch_put(
        keys=list(told), partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags
    )
    metrics: dict[str, Any] = {}
    batch = KVBatchMeta(keys=list(told), tags=tags, partition_id="train")
    Trainer()._compute_metrics(batch, metrics, global_steps=3)
    assert metrics == {
        "training/global_step": 3,
        "callsheet/excluded": 1.0,
        "callsheet/failed": 2.0,
        "callsheet/replaced": 2.0,
        "callsheet/cut_replies": 0.0,
        "callsheet/failed/ENV/no_server": 1.0,
        "callsheet/failed/POLICY/bad_report": 1.0,
    }


def test_a_variable_lets_all_trainers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = "callsheet.integrations.verl.step_counts,callsheet.integrations.verl.advantages"
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", modules)
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len(ran.stdout.splitlines()) == 3
    for line in ran.stdout.splitlines():
        assert "'CountsFailures'" in line
