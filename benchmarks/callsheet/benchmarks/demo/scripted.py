"""The demo's policy: a script decides, and the engine generates as many tokens as the agent would think."""

from __future__ import annotations

import random
from collections.abc import Sequence

import anyio
from callsheet.benchmarks.demo.episodes import Episode
from callsheet.benchmarks.demo.policy import Decision
from callsheet.client import Command, Sampling, Timeouts, TrainingSample, Trajectory
from callsheet.environments import Message, Tool
from callsheet.environments.bash_replies import CommandReport, read_report
from callsheet.environments.sandbox_environment import PATIENCE_S, SET_UP_S
from callsheet.managers.inference import tokenizer

PROMPT_LIMIT = 1024
OBSERVATION_LIMIT = 400
_DONE: Message = {"role": "assistant", "content": "I am done."}


def thinking_tokens(rng: random.Random) -> int:
    """How many tokens an agent thinks before it acts: log-normal, with a median of 40, between 8 and 200.

    At 100 tokens a second that makes environments busy for about a third of a trajectory's life; real ones are for 15
    to 47 %.
    """
    return max(8, min(200, round(40 * rng.lognormvariate(0.0, 0.8))))


class DemoConversation:
    """A growing list of tokens, of which prompts are the latest part.

    A prompt begins with the introduction. When it would pass `PROMPT_LIMIT` tokens, about half of what follows the
    introduction is left out, and stays out, so that the prompts after it share a prefix again.
    """

    def __init__(self, introduction: str) -> None:
        self._introduction = tokenizer.encode(introduction, begin=True)
        self._later: list[int] = []
        self._left_out = 0

    @property
    def token_ids(self) -> list[int]:
        """All tokens so far."""
        return [*self._introduction, *self._later]

    def add_thinking(self, token_ids: Sequence[int]) -> None:
        """Adds what the engine generated."""
        self._later.extend(token_ids)

    def add_text(self, text: str) -> None:
        """Adds a command or an observation as a turn of its own; the middle of a long one is left out."""
        if len(text) > OBSERVATION_LIMIT:
            text = f"{text[: OBSERVATION_LIMIT // 2]}\n...\n{text[-OBSERVATION_LIMIT // 2 :]}"
        self._later.extend(tokenizer.encode(text, end_of_turn=True))

    def prompt(self) -> list[int]:
        """The tokens to generate from; at most `PROMPT_LIMIT`."""
        room = PROMPT_LIMIT - len(self._introduction)
        if len(self._later) - self._left_out > room:
            self._left_out = len(self._later) - room // 2
        return [*self._introduction, *self._later[self._left_out :]]


class ScriptedPolicy:
    """Replies by an episode's script, and thinks before each decision.

    Attributes:
        conversation: What was said, as the engine's tokens.
        turns: Decisions so far.
        bug_confirmed: Whether the failing test of a coding episode did fail before anything was changed; None if it was
            not run, or there is none.
    """

    def __init__(self, episode: Episode, tokens_per_s: float) -> None:
        self.turns = 0
        self.bug_confirmed: bool | None = None
        self._episode = episode
        self._tokens_per_s = tokens_per_s
        self._script = episode.policy()
        self._thinking = random.Random(episode.seed)
        self._heard = 1  # the introduction, with which the conversation begins
        self.conversation = DemoConversation(str(episode.world.messages[0]["content"]))
        self._last: Decision | None = None
        self._report: CommandReport | None = None

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        """Returns the script's next decision as a call, or a reply that ends the episode."""
        del tools
        if len(messages) == 1:
            # A set-up that printed nothing is a turn, too.
            self.conversation.add_text("")
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
        tokens, began = thinking_tokens(self._thinking), anyio.current_time()
        outcome = await trajectory.generate(
            self.conversation.prompt(),
            Sampling(max_new_tokens=tokens, seed=self._thinking.getrandbits(32)),
            label="think",
            task=self._episode.task,
            timeouts=timeouts(SET_UP_S),
        )
        self.conversation.add_thinking(outcome.unwrap().token_ids)
        # The small model here is faster than the agent that is played.
        await anyio.sleep_until(began + tokens / self._tokens_per_s)


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
