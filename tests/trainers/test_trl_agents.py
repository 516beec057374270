"""A black-box agent under TRL: it asks the gateway from an isolated sandbox, and TRL trains on its tokens."""

from __future__ import annotations

import shutil
import socket
import uuid
from pathlib import Path

import pytest

pytest.importorskip("trl")

from callsheet.client import ClientOptions
from callsheet.integrations.trl import CallsheetRollout, PublishWeights

from tests.trainers.asking_agent import AskingTasks
from tests.trainers.stacks import running_stack
from tests.trainers.test_trl_rollout import config, trainer_of, watched


def test_an_agents_tokens_are_trained_on(model_directory: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is missing (package bubblewrap on Debian and Ubuntu)")
    isolated = ("--isolation", "bubblewrap", "--gateway", f"127.0.0.1:{port}")
    with running_stack(tmp_path / "data", model_directory, *isolated) as address:
        options = ClientOptions(gateway=f"http://127.0.0.1:{port}")
        rollout = CallsheetRollout(address, AskingTasks(), job_id=f"agents-{uuid.uuid4().hex[:8]}", options=options)
        args = config(tmp_path, temperature=0.9, max_completion_length=256)
        trainer = trainer_of(model_directory, rollout, args, callbacks=[PublishWeights(rollout)])
        seen = watched(trainer, rollout)
        trainer.train()
    assert len(seen) == 2
    for columns in seen:
        assert columns["callsheet_score"] == [1.0] * 8
        for mask in columns["env_mask"]:
            # Two replies, with the agent's second question between them.
            assert mask[0] == 1
            assert 0 in mask
    logged = [entry for entry in trainer.state.log_history if "callsheet/excluded" in entry]
    assert [(entry["callsheet/excluded"], entry["callsheet/failed"]) for entry in logged] == [(0.0, 0.0)] * 2
