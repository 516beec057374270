"""The verbs of jobs and trajectories: each submits an action and waits for its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar, Unpack

import anyio
from callsheet.client.backend import ActionHandle, Connector
from callsheet.client.errors import BadTextError
from callsheet.client.words.actions import (
    Action,
    Generate,
    Judge,
    RewardModel,
    RewardScript,
    RewardTests,
    Submission,
    TeacherLogProbs,
    ToolCall,
)
from callsheet.client.words.commands import CommandLike, FilesLike, culprits_of
from callsheet.client.words.functions import function_script
from callsheet.client.words.options import ActionOptions
from callsheet.client.words.outcomes import Failed, Outcome, Reason, Succeeded
from callsheet.v1.action_values import BackgroundProcesses, ConversationText, Sampling, Where
from callsheet.v1.outcome_values import CommandResult, FailureKind, GenerateResult, RewardResult, ToolCallResult

T = TypeVar("T")

Observer: TypeAlias = Callable[[Action[Any], ActionOptions, Outcome[Any]], None]
"""Called with the action, the options and the outcome of a verb."""

_SAMPLING = Sampling()


class ActionVerbs:
    """The verbs of jobs and trajectories. The object holds ids and a count only, so it pickles with its client.

    A verb waits for the outcome of its action; cancelling the waiting task cancels the action. A verb raises
    RefusedError if the scheduler refuses the action, and ConnectionLostError if there was no connection for too long.
    An unknown keyword argument, or a value of a wrong type, raises InvalidArgumentError, which names the argument. A
    text that no program can take, such as one with a NUL, gives the outcome POLICY `bad_command`, as a model may have
    written it.

    Attributes:
        client: The client of the job.
        job_id: The job's id.
        waited_s: Seconds in queues of all actions whose outcome a verb of this object returned.
        heard: Signs of odd texts in everything that a model has written, see `culprits_of`; None unless a runner of
            episodes notes them. A text that breaks a rule without such a sign is a mistake of the environment, and
            raised.
        observer: Called with action, options and outcome before the verb returns; None calls nothing.
    """

    def __init__(self, client: Connector, job_id: str, trajectory_id: str) -> None:
        self.client = client
        self.job_id = job_id
        self.waited_s = 0.0
        self.heard: frozenset[str] | None = None
        self.observer: Observer | None = None
        self._trajectory_id = trajectory_id

    async def submit(self, action: Action[T], **options: Unpack[ActionOptions]) -> ActionHandle[T]:
        """Submits an action and returns a handle, once the action is in the client's outbox.

        Args:
            action: The action.
            **options: See `ActionOptions`.

        Raises:
            InvalidArgumentError: The action breaks a rule that the client knows.
            RefusedError: The scheduler refused an action that refers to stored payloads. The handle raises any other
                refusal.
            ConnectionLostError: There was no connection for too long.
        """
        backend = self.client.backend()
        given = options.get("action_id")
        action_id = given if given is not None else self._own_action_id() or backend.new_action_id()
        return await backend.submit(Submission(self.job_id, self._trajectory_id, action_id, action, options))

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling = _SAMPLING,
        *,
        model: str = "policy",
        **options: Unpack[ActionOptions],
    ) -> Outcome[GenerateResult]:
        """Runs a language model. See `Generate`, `Sampling` and `ActionOptions`."""
        return await self._perform(Generate(prompt_token_ids, sampling, model), options)

    async def tool_call(
        self,
        service: str,
        method: str,
        arguments: bytes = b"",
        *,
        idempotent: bool = False,
        **options: Unpack[ActionOptions],
    ) -> Outcome[ToolCallResult]:
        """Calls an outside API: once, unless the call is declared idempotent. See `ToolCall` and `ActionOptions`."""
        return await self._try(partial(ToolCall, service, method, arguments, idempotent), options)

    async def reward_tests(
        self,
        command: CommandLike,
        *,
        where: Where = Where.FRESH,
        files: FilesLike = (),
        image: str = "",
        service: str = "",
        background: BackgroundProcesses | None = None,
        tests: int = 0,
        **options: Unpack[ActionOptions],
    ) -> Outcome[RewardResult]:
        """Scores by a test suite. See `RewardTests` and `ActionOptions`.

        Raises:
            InvalidArgumentError: A job asks for a sandbox of its own, which a job lacks, or for an empty one.
        """
        suite = partial(
            RewardTests,
            command,
            where=where,
            files=files,
            image=image,
            service=service,
            background=background,
            tests=tests,
        )
        return await self._try(suite, options)

    async def reward_script(
        self,
        command: CommandLike,
        *,
        where: Where = Where.FRESH,
        score_file: str = "",
        files: FilesLike = (),
        image: str = "",
        service: str = "",
        background: BackgroundProcesses | None = None,
        **options: Unpack[ActionOptions],
    ) -> Outcome[RewardResult]:
        """Scores by a script that writes its score to a file. See `RewardScript` and `ActionOptions`.

        Raises:
            InvalidArgumentError: A job asks for a sandbox of its own, which a job lacks, or for an empty one.
        """
        script = partial(
            RewardScript,
            command,
            where=where,
            score_file=score_file,
            files=files,
            image=image,
            service=service,
            background=background,
        )
        return await self._try(script, options)

    async def reward_function(
        self,
        function: str,
        arguments: Mapping[str, object],
        *,
        image: str = "",
        service: str = "",
        **options: Unpack[ActionOptions],
    ) -> Outcome[RewardResult]:
        """Scores by a function of an installed package, in a new sandbox on any node. See `ActionOptions`.

        The sandbox sees the packages of its image; without one those of its manager's system and of its `--stage`
        directories. Its label is the function unless another one is given.

        Args:
            function: "package.module:function". It returns a number, a dict with a number as "score", or a list of one
                of them. What it raises fails the action as ENV `script_failed`.
            arguments: Its arguments by name; JSON carries them, numbers and arrays of numpy as lists.
            image: As of `RewardScript`.
            service: As of `RewardScript`.
        """
        script = partial(function_script, function, arguments, image, service)
        return await self._try(script, {"label": function, **options})

    async def reward_model(
        self,
        token_ids: Sequence[int] = (),
        *,
        model: str = "scorer",
        text: ConversationText | None = None,
        **options: Unpack[ActionOptions],
    ) -> Outcome[RewardResult]:
        """Scores token ids, or a text, by a model. See `RewardModel` and `ActionOptions`."""
        return await self._try(partial(RewardModel, token_ids, model, text), options)

    async def teacher_log_probs(
        self,
        model: str,
        token_ids: Sequence[int] = (),
        *,
        prompt_token_ids: Sequence[int] = (),
        text: ConversationText | None = None,
        **options: Unpack[ActionOptions],
    ) -> Outcome[RewardResult]:
        """Asks a teacher for log-probabilities of tokens. See `TeacherLogProbs` and `ActionOptions`."""
        return await self._try(partial(TeacherLogProbs, model, token_ids, prompt_token_ids, text), options)

    async def judge(
        self, model: str, rubric: str, text: ConversationText, **options: Unpack[ActionOptions]
    ) -> Outcome[RewardResult]:
        """Asks a model for a judgement by a rubric. See `Judge` and `ActionOptions`."""
        return await self._try(partial(Judge, model, rubric, text), options)

    def _own_action_id(self) -> str | None:
        """Returns the id of the next action without an id of the caller; None lets the client make one."""
        return None

    def is_heard(self, refused: BadTextError) -> bool:
        """Returns whether a model may have written the refused text: always, if `heard` is not kept."""
        return self.heard is None or refused.culprit in self.heard

    async def _try(self, make: Callable[[], Action[T]], options: ActionOptions) -> Outcome[T]:
        """Performs an action whose texts a model may have written; a text that breaks a rule is the model's failure."""
        try:
            return await self._perform(make(), options)
        except BadTextError as refused:
            if not self.is_heard(refused):
                raise
            message = f"{refused.field} is {refused.value!r:.80}: {refused.rule}"
            return Failed(FailureKind.POLICY, Reason.BAD_COMMAND, message, job_id=self.job_id)

    async def _perform(self, action: Action[T], options: ActionOptions) -> Outcome[T]:
        handle = await self.submit(action, **options)
        try:
            outcome = await handle.outcome()
        except anyio.get_cancelled_exc_class():
            handle.abandon("its caller was cancelled")
            raise
        self.waited_s += outcome.timeline.queue_s
        value = outcome.value if isinstance(outcome, Succeeded) else None
        if self.heard is not None and isinstance(value, CommandResult):
            for printed in (value.stdout, value.stderr, *(each.content or b"" for each in value.downloads)):
                self.heard |= culprits_of(printed.decode(errors="surrogateescape"))
        if self.observer is not None:
            self.observer(action, options, outcome)
        return outcome
