"""What the tests of verl run: a tokenizer, a model of random weights, tools that read notes, and a server for verl."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from callsheet.client import FailureKind, Job, Outcome, RewardResult, SandboxFile, Trajectory
from callsheet.environments import Beginning, EpisodeFailure, EpisodeTask, Message, Observation
from callsheet.integrations.verl import SandboxTool
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.workers.rollout.replica import TokenOutput

from tests.trainers.notes import NOT_THERE, READ, NoteEnvironment, NoteTasks, notes_of, question_of

TEMPLATE = """{%- if tools -%}
<|im_start|>system
Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}A call is <tool_call>
{"name": NAME, "arguments": {}}
</tool_call><|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == "tool" -%}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role == "assistant" and message.tool_calls -%}
<|im_start|>assistant
{{ message.content or "" }}
{%- for call in message.tool_calls -%}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% else -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
# verl knows no other keys of a tool; the environment offers the same, so that prompts are equal.
SCHEMA = OpenAIFunctionToolSchema.model_validate(
    {"type": "function", "function": {name: READ["function"][name] for name in ("name", "description", "parameters")}}
)


def save_model(place: Path) -> None:
    """Writes a model with a tokenizer that has learned little."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    backend.train_from_iterator([TEMPLATE] + [question_of(number) for number in range(50)], trainer)
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=400,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    config.architectures = ["Qwen2ForCausalLM"]
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(place)
    tokenizer.save_pretrained(place)


class NoteTakingServer:
    """verl's client of its servers, whose model reads notes. It writes letter by letter, as no tokenizer would.

    Attributes:
        asked: What it was asked for, in the order in which that came.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.asked: list[tuple[str, list[int]]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **_: Any
    ) -> TokenOutput:
        """Says what comes next."""
        self.asked.append((request_id, list(prompt_ids)))
        last = self.tokenizer.decode(prompt_ids).split("<|im_start|>")[-2]
        said = last.removeprefix("user\n").split("<|im_end|>")[0]
        if said.startswith("<tool_response>"):
            heard = said.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")
            text = call_of(heard.removeprefix("see ")) if heard.startswith("see ") else heard
        else:
            text = call_of(said.removeprefix("What is in ").removesuffix("?"))
        tokens = [token for letter in text for token in self.tokenizer.encode(letter)] + [2]
        tokens = tokens[: sampling_params.get("max_tokens")]
        log_probs = [-0.01 * (at + 1) for at in range(len(tokens))]
        steps = {"global_steps": 5, "min_global_steps": 5, "max_global_steps": 5}
        return TokenOutput(token_ids=tokens, log_probs=log_probs, stop_reason="completed", extra_fields=steps)


def call_of(name: str) -> str:
    """A call of the tool as the model writes it."""
    return "<tool_call>\n" + json.dumps({"name": "read", "arguments": {"name": name}}) + "\n</tool_call>"


class LocalNoteTool(BaseTool):
    """Reads notes in this process."""

    def __init__(self, config: Any, tool_schema: Any) -> None:
        super().__init__(config, SCHEMA)

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **_: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        return ToolResponse(text=text_of(parameters["name"])), 0.0, {}


class SandboxNoteTool(SandboxTool):
    """Reads notes in a sandbox. The second note is there only where the first one was read."""

    def __init__(self, config: Any, tool_schema: Any) -> None:
        super().__init__(config, SCHEMA)

    def command(self, parameters: dict[str, Any]) -> Sequence[str]:
        name = parameters["name"]
        condition = "touch seen" if name.startswith("a") else "test -e seen"
        return ["sh", "-c", f"{condition} && printf %s {shlex.quote(text_of(name))}"]


def text_of(name: str) -> str:
    """What a note says."""
    return notes_of(int(name[1:])).get(name, NOT_THERE)


class VerlNoteTasks(NoteTasks):
    """Notes whose tool is described as verl describes it."""

    def environment(self, task: EpisodeTask) -> NoteEnvironment:
        return VerlNoteEnvironment(task.data["number"], self.wait_s, self.log)


class VerlNoteEnvironment(NoteEnvironment):
    """One of them."""

    async def reset(self, trajectory: Trajectory) -> Beginning:
        begun = await super().reset(trajectory)
        return Beginning(begun.messages, [SCHEMA.model_dump(exclude_unset=True, exclude_none=True)])


class LostNoteTasks(VerlNoteTasks):
    """Notes whose sandboxes are lost while they are read."""

    def environment(self, task: EpisodeTask) -> NoteEnvironment:
        return LostNoteEnvironment(task.data["number"])


class LostNoteEnvironment(VerlNoteEnvironment):
    """One of them."""

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        EpisodeFailure(FailureKind.INFRA, "state_lost", "the node is gone").throw()


async def counts_letters(job: Job, response: str, row: Mapping[str, Any]) -> Outcome[RewardResult]:
    """Scores by a command in a sandbox of its own."""
    files = [SandboxFile("said", response.encode())]
    return await job.reward_tests(f"test $(wc -c <said) -ge {row['ground_truth']}", files=files)
