"""Graders: a judge scores an answer by a rubric, and a teacher says how likely each of its tokens is.

In one shell: .venv/bin/callsheet up --model DIR
In another:   .venv/bin/callsheet manager reward --scheduler 127.0.0.1:7077 --model judge=DIR,kind=judge \
                --model teacher=DIR,kind=teacher
In a third:   .venv/bin/python examples/graders.py DIR

The teacher takes token ids, so that it must have the tokenizer of the policy, which is in DIR.
"""

from __future__ import annotations

import sys

import anyio
from callsheet.client import Client, ConversationText, Failed, Sampling
from transformers import AutoTokenizer

QUESTION = "What is 6 x 7?"
RUBRIC = "Is the answer right and short? End with 'Score: 0' to 'Score: 10'."


async def main(directory: str) -> None:
    """Generates an answer and has it graded twice, at the same time."""
    prompt = AutoTokenizer.from_pretrained(directory).encode(QUESTION)
    async with Client.from_env() as client, await client.open_job("graders") as job:
        async with job.trajectory("t-1") as trajectory:
            answer = (await trajectory.generate(prompt, Sampling(max_new_tokens=16, temperature=1.0))).unwrap()

        async def judge() -> None:
            judged = await job.judge("judge", RUBRIC, ConversationText(QUESTION, answer.text or ""))
            # An answer without a score is a failure, and never a score of 0.
            print(f"judge: {judged.reason if isinstance(judged, Failed) else judged.unwrap().score}")

        async def teach() -> None:
            graded = await job.teacher_log_probs("teacher", answer.token_ids, prompt_token_ids=prompt)
            # On-policy distillation trains on this: by how much the policy finds its own tokens likelier.
            advantages = [
                teacher - policy for teacher, policy in zip(graded.unwrap().log_probs, answer.log_probs, strict=True)
            ]
            print(f"teacher: {sum(advantages) / len(advantages):.3f} nats a token over {len(advantages)} tokens")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(judge)
            tasks.start_soon(teach)


anyio.run(main, sys.argv[1])
