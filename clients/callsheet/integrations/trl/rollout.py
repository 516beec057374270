"""A `rollout_func` for TRL's GRPOTrainer: all trajectories of a batch at once, token-exact.

A trainer's hold on its job connects when it is first used, in a thread of its own, and pickles as names.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from callsheet.client import ActionOptions, Client, ClientOptions, Job, LogProbsMode, Sampling, Staleness
from callsheet.client.sync.loop_thread import LoopThread, loop_thread
from callsheet.environments import (
    EpisodePolicy,
    EpisodeTask,
    FailureRule,
    GatewaySampling,
    TaskSet,
    TokenPolicy,
    load_task_set,
)
from callsheet.environments.failures import DEFAULT_RULE
from callsheet.environments.seats import FilledSeat, Seat, SeatSettings, fill_seats
from callsheet.gateway.conversations.renderer import Renderer
from callsheet.gateway.renderers.held_tokenizer import HeldTokenizer, renderer_of
from callsheet.integrations.trl.rows import columns
from callsheet.integrations.trl.trainer_parts import GenerationArguments, GrpoTrainerPart

T = TypeVar("T")
# Not that of the sync clients: environments run here, and one that blocks would hold those up.
_THREAD = "callsheet trainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """How the job is opened; see `Client.open_job`.

    Attributes:
        share: Fair share relative to other jobs.
        grace_s: How many seconds its work goes on without the trainer; None takes the server's default (120 s).
        staleness: What becomes of trajectories that fall behind the newest policy version; None: nothing does.
        dead_sandbox_is_infra: An action whose sandbox dies fails as INFRA, not as ENV.
    """

    share: float = 1.0
    grace_s: float | None = None
    staleness: Staleness | None = None
    dead_sandbox_is_infra: bool = False


_DEFAULTS = JobSettings()


class TrainerSession:
    """One process's hold on a job.

    Args:
        target: The scheduler's address, "host:port".
        job_id: The job. A trainer that is started again under the same id finds what had run, and repeats nothing.
        settings: How the job is opened.
        options: How to connect; None takes the variables of the environment, as `Client.from_env` does.
    """

    def __init__(
        self,
        target: str,
        job_id: str,
        settings: JobSettings = _DEFAULTS,
        options: ClientOptions | None = None,
    ) -> None:
        self.client = Client(target, options) if options is not None else Client.from_env(target=target)
        self.job_id = job_id
        self.settings = settings
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._job: Job | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the session's thread and returns its result. All uses of the job are there."""
        return self._running().run(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine in the session's thread beside the caller."""
        return self._running().start(coroutine)

    async def job(self) -> Job:
        """Returns the job, opened. To be called in the session's thread.

        Raises:
            AlreadyExistsError: It is open with other settings.
            ConnectionLostError: There was no connection for too long.
        """
        if self._job is None:
            of = self.settings
            self._job = await self.client.open_job(
                self.job_id,
                share=of.share,
                grace_s=of.grace_s,
                staleness=of.staleness,
                dead_sandbox_is_infra=of.dead_sandbox_is_infra,
            )
        return self._job

    def close_job(self) -> None:
        """Closes the job, if this process holds it: a run that has ended. What comes later opens it anew."""
        job, self._job = self._job, None
        if job is not None:
            self.run(job.close())

    def _running(self) -> LoopThread:
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._job = os.getpid(), None
        return loop_thread(_THREAD)

    def __getstate__(self) -> dict[str, Any]:
        """Pickles names and settings; connections stay here."""
        return {"client": self.client, "job_id": self.job_id, "settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a session that has not connected yet."""
        self.__dict__.update(state)
        self._begin()


# How the trainer wants tokens sampled, as an engine is told.
_NOT_SERVED: Final[tuple[tuple[str, tuple[Any, ...]], ...]] = (
    ("min_p", (None, 0.0)),
    ("repetition_penalty", (None, 1.0)),
    ("generation_kwargs", (None, {})),
)
"""Settings of the trainer that no engine is asked for, and the values that mean nothing."""
DEFAULT_COMPLETION_TOKENS: Final = 256


def sampling_of(args: GenerationArguments) -> Sampling:
    """Returns the trainer's own sampling.

    Log-probabilities are of the distribution that was drawn from, as TRL wants them of vLLM. Greedy ones would be 0, so
    that these are the model's own.

    Raises:
        ValueError: The trainer asks for what engines are not asked for; it names the setting.
    """
    for name, unset in _NOT_SERVED:
        value = getattr(args, name, None)
        if value not in unset:
            raise ValueError(f"{name} is {value!r} in the trainer's arguments; a rollout of Callsheet leaves it unset")
    greedy = args.temperature == 0.0 or args.top_k == 1
    return Sampling(
        max_new_tokens=completion_tokens(args),
        temperature=0.0 if greedy else args.temperature,
        top_p=1.0 if greedy else args.top_p,
        top_k=0 if greedy else max(0, args.top_k or 0),
        log_probs_mode=LogProbsMode.RAW if greedy else LogProbsMode.SAMPLED,
    )


def completion_tokens(args: GenerationArguments) -> int:
    """Returns how many tokens a completion may have, those of the environment included."""
    return args.max_completion_length or DEFAULT_COMPLETION_TOKENS


# Makes the policy of each trajectory: the trainer's tokenizer and sampling, and an engine that generates.
@dataclass(frozen=True, slots=True)
class PolicyMaker:
    """Settings that the policies of a run share.

    Attributes:
        renderer: The trainer's tokenizer and chat template.
        sampling: How each reply is sampled.
        max_completion_tokens: The most tokens of a trajectory after its first prompt.
        model: The service that generates.
        options: Options of each generate action.
    """

    renderer: Renderer
    sampling: Sampling
    max_completion_tokens: int
    model: str = "policy"
    options: ActionOptions | None = None

    def forced_on(self, seats: SeatSettings) -> SeatSettings:
        """Returns settings that force this sampling on black-box agents, unless they name another."""
        return replace(seats, agent_sampling=seats.agent_sampling or GatewaySampling.of(self.sampling))

    def __call__(self, task: EpisodeTask) -> EpisodePolicy:
        """Returns the policy of one trajectory."""
        options: ActionOptions = {"task": task.task_id, **(self.options or {})}
        return TokenPolicy(
            self.renderer,
            self.sampling,
            max_completion_tokens=self.max_completion_tokens,
            model=self.model,
            options=options,
        )


_DEFAULT_SEATS = SeatSettings()
_DEFAULT_JOB = JobSettings()


class NothingToTrainOnError(RuntimeError):
    """No completion of a batch is a sample, so that a step of the optimiser would be one on nothing."""


@dataclass(slots=True)
class CallCounter:
    """Numbers the calls of one step, so that a step done again has the same numbers."""

    step: tuple[str, int] = ("", -1)
    calls: int = field(default=0)

    def name(self, mode: str, step: int) -> str:
        """Returns the name of the next call, such as "train/7.0"."""
        if (mode, step) != self.step:
            self.step, self.calls = (mode, step), 0
        self.calls += 1
        return f"{mode}/{step}.{self.calls - 1}"


class CallsheetRollout:
    """Pass it as `rollout_func`. It pickles, and connects where it is called.

    A prompt names its task: `dataset_rows` makes rows for it. The environment then tells the policy what to do.

    Args:
        target: The scheduler's address, "host:port".
        task_set: The tasks: an object, an entry point's name, or "module:name".
        job_id: The job of this run. A run that is started again under it repeats no action.
        sampling: How replies are sampled; None takes the trainer's arguments.
        model: The service that generates.
        rule: What becomes of failures.
        seats: Turns, replacements and deadlines.
        job: How the job is opened.
        generate: What goes with each generate action, for instance `timeouts`.
        options: How to connect; None takes the variables of the environment, as `Client.from_env` does.
        task_options: Options of a task set that is given by its name.
    """

    def __init__(
        self,
        target: str,
        task_set: TaskSet | str,
        *,
        job_id: str,
        sampling: Sampling | None = None,
        model: str = "policy",
        rule: FailureRule = DEFAULT_RULE,
        seats: SeatSettings = _DEFAULT_SEATS,
        job: JobSettings = _DEFAULT_JOB,
        generate: ActionOptions | None = None,
        options: ClientOptions | None = None,
        task_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.session = TrainerSession(target, job_id, job, options)
        self.task_set = load_task_set(task_set, **(task_options or {})) if isinstance(task_set, str) else task_set
        self.sampling = sampling
        self.model = model
        self.rule = rule
        self.seats = seats
        self.generate = generate
        self._tasks = {task.task_id: task for task in self.task_set.tasks()}
        self._calls = CallCounter()
        self._renderer: Renderer | None = None

    def dataset_rows(self) -> list[dict[str, Any]]:
        """Returns a row for each task, for `datasets.Dataset.from_list`: its prompt and its id."""
        return [{"prompt": [{"role": "user", "content": task_id}], "task_id": task_id} for task_id in self._tasks]

    def __call__(self, prompts: Sequence[Any], trainer: GrpoTrainerPart) -> dict[str, list[Any]]:
        """Returns one completion for each prompt, which TRL has repeated for its siblings.

        Raises:
            KeyError: A prompt names no task.
            NothingToTrainOnError: All completions are excluded, for instance as no engine is there.
            CallsheetError: There was no connection for too long, or something was refused.
        """
        tasks = [self._task(prompt) for prompt in prompts]
        mode = "train" if getattr(trainer.model, "training", True) else "eval"
        name = self._calls.name(mode, trainer.state.global_step)
        seats = list(seats_of(f"{name}/{trainer.accelerator.process_index}", tasks))
        policies = self.policies(
            trainer.processing_class,
            trainer.args,
            chat_template=getattr(trainer, "chat_template", None),
            template_arguments=getattr(trainer, "chat_template_kwargs", None),
        )
        filled = self.session.run(self._fill(seats, policies))
        self._refuse_nothing(filled, mode)
        end_token = trainer.processing_class.eos_token_id or 0
        return columns(filled, self.rule, end_token=end_token, max_completion_tokens=completion_tokens(trainer.args))

    async def _fill(self, seats: Sequence[Seat], policies: PolicyMaker) -> list[FilledSeat]:
        settings = policies.forced_on(self.seats)
        return await fill_seats(await self.session.job(), self.task_set, seats, policies, settings=settings)

    def policies(
        self,
        processing_class: HeldTokenizer,
        args: GenerationArguments,
        *,
        chat_template: str | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> PolicyMaker:
        """Returns what makes the policy of each trajectory.

        Args:
            processing_class: The trainer's tokenizer.
            args: Its settings.
            chat_template: The template that it uses in place of the tokenizer's.
            template_arguments: What it gives to the template with every conversation.
        """
        if self._renderer is None:
            self._renderer = renderer_of(
                processing_class, chat_template=chat_template, template_arguments=template_arguments
            )
        sampling = self.sampling or sampling_of(args)
        return PolicyMaker(self._renderer, sampling, completion_tokens(args), self.model, self.generate)

    def _task(self, prompt: Any) -> EpisodeTask:
        """Returns the task that a prompt names: a text, or messages of which the last one is its id."""
        named = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        if named not in self._tasks:
            raise KeyError(f"prompt is {named!r:.200}; it must be the id of a task, as `dataset_rows` has them")
        return self._tasks[named]

    def _refuse_nothing(self, filled: Sequence[FilledSeat], mode: str) -> None:
        rewards = [each.record.reward_by(self.rule) for each in filled]
        if mode == "train" and rewards and all(reward.is_excluded for reward in rewards):
            first = filled[0].record.failure
            names = sorted({reward.failure.name for reward in rewards if reward.failure is not None})
            raise NothingToTrainOnError(
                f"none of {len(rewards)} trajectories is a sample: {', '.join(names)}. The first one: {first}"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Pickles settings; the renderer is made anew of the trainer's tokenizer."""
        return {**self.__dict__, "_renderer": None}


def seats_of(name: str, tasks: Sequence[EpisodeTask]) -> Iterator[Seat]:
    """Yields a seat for each prompt. Equal tasks that follow each other are siblings.

    Ids are made of the call and of what the tasks are, so that a batch of other prompts is never taken for this one.
    """
    begin = 0
    while begin < len(tasks):
        end = next((at for at in range(begin, len(tasks)) if tasks[at] != tasks[begin]), len(tasks))
        group_id = f"{name}/{begin}-{digest(tasks[begin])}"
        for number in range(end - begin):
            yield Seat(f"{group_id}/{number}", group_id, end - begin, tasks[begin])
        begin = end


def digest(task: EpisodeTask) -> str:
    """Returns a short digest of a task."""
    text = json.dumps([task.task_id, dict(task.data)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
