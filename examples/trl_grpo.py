"""TRL's GRPOTrainer over a scheduler: whole trajectories at once, each in a sandbox, and weights that flow back.

In one shell: .venv/bin/callsheet up --model DIR
In another, after `pip install '.[trl]'` in the checkout: python examples/trl_grpo.py DIR [SCHEDULER]
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from callsheet.client import Command, Trajectory
from callsheet.environments import Beginning, EpisodeScore, EpisodeTask, Message, Observation
from callsheet.integrations.trl import CallsheetRollout, PublishWeights, callsheet_score

# A reply that this limit cuts is not carried out, and has a reward of 0. Chat models end such replies far earlier.
MOST_TOKENS = 256
# Prints the share of a letter in what was said, so that siblings have unlike rewards to learn from.
_SHARE = '{ all += length; hits += gsub(letter, "") } END { print all ? hits / all : 0 }'


class WriteTheLetter:
    """The model is to say a letter; a command in the sandbox looks at what it said."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    async def reset(self, trajectory: Trajectory) -> Beginning:
        """Makes the sandbox and asks."""
        (await trajectory.env_reset(set_up=": >said")).unwrap()
        return Beginning([{"role": "user", "content": f"Say {self.letter}."}])

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        """Keeps what the model said."""
        said = shlex.quote(str(reply.get("content") or ""))
        (await trajectory.env_step(f"printf %s {said} >said")).unwrap()
        return Observation(done=True)

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        """The share of the letter in it."""
        script = Command.argv("sh", "-c", f"awk -v letter={self.letter} '{_SHARE}' said >$0", "{score}")
        return EpisodeScore((await trajectory.reward_script(script)).unwrap().score)


class Letters:
    """Two tasks."""

    def tasks(self) -> Sequence[EpisodeTask]:
        """Tasks with the letter that is asked for."""
        return [EpisodeTask(f"letter-{letter}", {"letter": letter}) for letter in "ab"]

    def environment(self, task: EpisodeTask) -> WriteTheLetter:
        """The environment of one episode."""
        return WriteTheLetter(task.data["letter"])


def main(model: str, scheduler: str) -> None:
    """Trains for a few steps."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rollout = CallsheetRollout(scheduler, Letters(), job_id="trl-letters")
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[callsheet_score],
        rollout_func=rollout,
        callbacks=[PublishWeights(rollout)],
        train_dataset=Dataset.from_list(rollout.dataset_rows()),
        args=GRPOConfig(
            output_dir="trl-letters",
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=MOST_TOKENS,
            max_steps=20,
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:7077")
