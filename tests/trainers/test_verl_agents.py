"""A black-box agent in verl's agent loop: it asks the gateway from an isolated sandbox."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

pytest.importorskip("verl")

from tests.trainers.stacks import running_stack
from tests.trainers.test_verl_agent_loops import config_of, ran
from tests.trainers.verl_parts import save_model

pytestmark = pytest.mark.anyio
AGENTS = "tests.trainers.asking_agent:AskingTasks"


async def test_an_agents_tokens_are_the_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is missing (package bubblewrap on Debian and Ubuntu)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gateway = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("CALLSHEET_GATEWAY", f"http://{gateway}")
    model = tmp_path / "model"
    save_model(model)
    with running_stack(tmp_path / "data", model, "--isolation", "bubblewrap", "--gateway", gateway) as address:
        config = config_of(model, tmp_path, address, "agents", tasks=AGENTS, settings="generate: callsheet")
        found = await ran(config, "callsheet_episode", 2)
    assert list(found.non_tensor_batch["callsheet_failure"]) == ["", ""]
    assert found.batch["rm_scores"].sum(-1).tolist() == [1.0, 1.0]
    for at in range(2):
        length = int(found.batch["attention_mask"][at, 512:].sum())
        mask = found.batch["response_mask"][at, :length]
        # Two replies, with the agent's second question between them.
        assert mask[0] == 1
        assert 0 in mask.tolist()


async def test_an_agent_needs_callsheets_engines(tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_model(model)
    config = config_of(model, tmp_path, "127.0.0.1:1", "agents", tasks=AGENTS)
    with pytest.raises(ValueError, match="set generate to 'callsheet'"):
        await ran(config, "callsheet_episode", 1)
