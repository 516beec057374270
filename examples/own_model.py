"""A model of your own: what the stack serves is what transformers computes.

In one shell: .venv/bin/callsheet up --model DIR
In another:   .venv/bin/python examples/own_model.py DIR
"""

from __future__ import annotations

import sys
from typing import Any

import anyio
import torch
from callsheet.client import Client, LogProbsMode, Sampling
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = ("The capital of France is", "def main():", "2, 3, 5, 7,")
GREEDY = Sampling(max_new_tokens=24, temperature=0, log_probs_mode=LogProbsMode.RAW)


def reference(model: Any, tokenizer: Any, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Greedy tokens of transformers' own `generate`, and their log-probabilities."""
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=GREEDY.max_new_tokens,
            do_sample=False,
            eos_token_id=model.generation_config.eos_token_id or tokenizer.eos_token_id,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    tokens = out.sequences[0, len(prompt) :].tolist()
    table = torch.cat(out.logits).log_softmax(-1)
    return tokens, [float(table[index, token]) for index, token in enumerate(tokens)]


async def main(directory: str) -> None:
    """Generates from the stack and from transformers, and compares."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    async with Client.from_env() as client, await client.open_job("own-model") as job:
        async with job.trajectory("t-1") as trajectory:
            for text in PROMPTS:
                prompt = tokenizer.encode(text)
                result = (await trajectory.generate(prompt, GREEDY)).unwrap()
                tokens, log_probs = reference(model, tokenizer, prompt)
                assert list(result.token_ids) == tokens
                off = max(abs(ours - theirs) for ours, theirs in zip(result.log_probs, log_probs, strict=True))
                assert off < 1e-4
                print(f"{text!r} -> {result.text!r}: the same {len(tokens)} tokens, log-probabilities within {off:.0e}")


anyio.run(main, sys.argv[1])
