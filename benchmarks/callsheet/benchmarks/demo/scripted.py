"""The demo's policy: a script decides, and the engine generates as many tokens as the agent would think."""

from __future__ import annotations

import random
from collections.abc import Sequence

from callsheet.benchmarks.demo.conversation import DemoConversation, thinking_tokens
from callsheet.benchmarks.demo.episodes import Episode
from callsheet.benchmarks.demo.policy import Decision
from callsheet.client import Command, Sampling, Timeouts, TrainingSample, Trajectory
from callsheet.environments import Message, Tool
from callsheet.environments.bash_replies import CommandReport, read_report
from callsheet.environments.sandbox_environment import PATIENCE_S, SET_UP_S

_DONE: Message = {"role": "assistant", "content": "I am done."}


class ScriptedPolicy:
    """Replies by an episode's script, and thinks before each decision.

    Attributes:
        conversation: What was said, as the engine's tokens.
        turns: Decisions so far.
        bug_confirmed: Whether the failing test of a coding episode did fail before anything was changed; None if it was
            not run, or there is none.
    """

    def __init__(self, episode: Episode) -> None:
        self.turns = 0
        self.bug_confirmed: bool | None = None
        self._episode = episode
        self._script = episode.policy()
        self._thinking = random.Random(episode.seed)
        self._heard = 1  # the introduction, with which the conversation begins
        self.conversation = DemoConversation(str(episode.world.messages[0]["content"]))
        self._last: Decision | None = None
        self._report: CommandReport | None = None

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        """Returns the script's next decision as a call, or a reply that ends the episode."""
        del tools
        self.hear(messages)
        decision = self._decide()
        if decision is None:
            return _DONE
        await self._think(trajectory)
        self._last = decision
        self.turns += 1
        self.conversation.add_text(_shown(decision.command))
        return self._episode.speak(decision, f"call-{self.turns}")

    async def samples(self, trajectory: Trajectory) -> tuple[TrainingSample, ...]:
        """Returns nothing: what the engine generates is not read."""
        del trajectory
        return ()

    def hear(self, messages: Sequence[Message]) -> None:
        """Takes note of what the environment has said since the last time."""
        for message in messages[self._heard :]:
            if message["role"] == "assistant":
                continue
            text = str(message["content"])
            if self._last is not None:
                self._report = read_report(text)
                text = self._report.output
                if self.turns == 1 and self._last.label == "test":
                    self.bug_confirmed = self._report.exit_code == 1
            self.conversation.add_text(text)
        self._heard = len(messages)

    def _decide(self) -> Decision | None:
        if self._last is None:
            return next(self._script, None)
        if self._report is None:
            raise ValueError("the environment answered no command")
        try:
            return self._script.send(self._report)
        except StopIteration:
            return None

    async def _think(self, trajectory: Trajectory) -> None:
        outcome = await trajectory.generate(
            self.conversation.prompt(),
            Sampling(max_new_tokens=thinking_tokens(self._thinking), seed=self._thinking.getrandbits(32)),
            label="think",
            task=self._episode.task,
            timeouts=timeouts(SET_UP_S),
        )
        self.conversation.add_thinking(outcome.unwrap().token_ids)


def timeouts(start_to_close_s: float) -> Timeouts:
    """Returns the deadlines of an action: one that waits for a reserved core may wait for nearly the whole run."""
    return Timeouts(
        schedule_to_start_s=PATIENCE_S,
        start_to_close_s=start_to_close_s,
        schedule_to_close_s=PATIENCE_S + 4 * start_to_close_s,
    )


def _shown(command: Command) -> str:
    program = command.program if isinstance(command.program, str) else " ".join(command.program)
    return f"$ {program}\n"
