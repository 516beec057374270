"""Three adapters that were written once: they run unchanged against every later Callsheet."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from anyio.to_thread import run_sync
from callsheet.client import Client
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.inference import tokenizer
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import Isolation

from tests import adapters
from tests.adapters.grpo_loop import Sample, train
from tests.adapters.trl_rollout import CallsheetRollouts, Message
from tests.adapters.verifiers_runtime import CallsheetRuntime
from tests.support.grpc_loops import runs_in_an_open_loop

pytestmark = pytest.mark.anyio
_FOLDER = Path(adapters.__file__).parent
# A changed adapter proves nothing: what breaks one is a change of a public name, which is to be undone instead.
_FROZEN = {
    "grpo_loop.py": "49c6006406304c48237b1a715295ce3f5ec592883260171a4ed8054a90b0ef9b",
    "trl_rollout.py": "27f8e18e396c0e861ac0efe13a215cd669aa92c25520e2cc965cc46114703b0e",
    "verifiers_runtime.py": "a549e605cee66aa1b506f5047817ea57f93435fa74b27b0e39a48e5979517c64",
}


def recorded(name: str) -> Any:
    """What a trainer passed."""
    return json.loads((_FOLDER / "recorded" / name).read_text())


class ByteTokenizer:
    """The tokenizer of the embedded engine, as TRL would hold it."""

    def apply_chat_template(self, messages: list[Message], *, add_generation_prompt: bool) -> list[int]:
        """Renders a conversation."""
        turns = [tokenizer.encode(message["content"], begin=True, end_of_turn=True) for message in messages]
        return [token for turn in turns for token in turn]

    def decode(self, token_ids: list[int]) -> str:
        """Returns the text of tokens."""
        return tokenizer.decode(token_ids)

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text."""
        return tokenizer.encode(text)


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Where a whole stack listens; each adapter opens jobs of its own."""
    isolation = Isolation.BUBBLEWRAP if probe_bubblewrap().works else Isolation.NONE
    settings = StackSettings(
        tmp_path_factory.mktemp("stack"), managers=(Role.SANDBOX, Role.INFERENCE), given={"isolation": isolation}
    )
    async with local_stack(settings) as stack:
        yield stack.address


@pytest.mark.parametrize("name", _FROZEN)
def test_an_adapter_is_as_it_was_written(name: str) -> None:
    assert sha256((_FOLDER / name).read_bytes()).hexdigest() == _FROZEN[name]


async def test_a_rollout_func_of_trl(address: str) -> None:
    batch = recorded("trl.json")
    trainer = SimpleNamespace(processing_class=ByteTokenizer(), args=SimpleNamespace(**batch["args"]))
    with runs_in_an_open_loop():
        out = await run_sync(CallsheetRollouts(address), batch["prompts"], trainer)
    assert {len(column) for column in out.values()} == {len(batch["prompts"])}
    for completion, log_probs, mask in zip(out["completion_ids"], out["logprobs"], out["env_mask"], strict=True):
        assert len(completion) == len(log_probs) == len(mask)
        assert set(mask) == {0, 1}
    assert out["sandbox_reward"] == [1.0] * len(batch["prompts"])
    # Siblings are no copies of each other.
    assert len({tuple(completion) for completion in out["completion_ids"]}) == len(batch["prompts"])


async def test_a_runtime_of_verifiers(address: str) -> None:
    task = recorded("verifiers.json")
    async with Client(address) as client, await client.open_job("verifiers") as job:
        runtime = CallsheetRuntime(job, "trace-1", task["env"])
        await runtime.start()
        for call in task["calls"]:
            if call["method"] == "run":
                result = await runtime.run(call["argv"], call["env"])
                assert (result.exit_code, result.stdout) == (call["exit_code"], call["stdout"])
            elif call["method"] == "write":
                await runtime.write(call["path"], call["data"].encode())
            elif call.get("missing"):
                with pytest.raises(FileNotFoundError):
                    await runtime.read(call["path"])
            else:
                assert (await runtime.read(call["path"])).decode() == call["data"]
        assert await runtime.score(task["score"]["script"]) == task["score"]["components"]
        await runtime.teardown()


async def test_a_plain_grpo_loop(address: str) -> None:
    batches: list[list[Sample]] = []
    samples = await train(address, [list(b"one"), list(b"two")], steps=2, size=3, optimise=batches.append)
    assert len(batches) == 2
    # A quorum of two in each group; a third may complete at the same moment.
    assert samples == sum(map(len, batches))
    assert 2 * 2 * 2 <= samples <= 2 * 2 * 3
