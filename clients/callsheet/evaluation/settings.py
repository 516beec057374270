"""Settings of an evaluation, which `callsheet eval` offers as options."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Final

from callsheet.options.common import DEFAULT_ADDRESS, Address
from callsheet.options.declaration import AtLeast, PathRule, Setting, check_least

GATEWAY: Final = "gateway"
"""Names the policy that asks the gateway."""
_DEFAULT_REPLY_TOKENS: Final = 1024
_SAMPLING: Final = ("max_tokens", "max_total_tokens", "temperature", "top_p", "top_k")
_REPLIES: Final = frozenset(("policy", "model_dir", "agent", "max_turns", "deadline", "truncate", *_SAMPLING))


def _name_and_value(option: str) -> str:
    if not option.partition("=")[0] or "=" not in option:
        raise ValueError(f"{option!r} must be NAME=VALUE")
    return option


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """Settings of an evaluation: its tasks, and how they run. Times are seconds.

    Attributes:
        retry_pause_s: The longest pause before a lost trajectory is tried again.
    """

    task_options: Annotated[
        tuple[str, ...],
        Setting(
            "An option of the task set; repeatable.",
            flag="--task-option",
            metavar="NAME=VALUE",
            repeatable=True,
            parse=_name_and_value,
        ),
    ] = ()
    tasks: Annotated[int | None, Setting("The first tasks only, up to this number.", default_text="all", least=1)] = (
        None
    )
    trials: Annotated[int, Setting("Trajectories of each task.", least=1)] = 1
    concurrency: Annotated[int, Setting("Trajectories at once.", least=1)] = 32
    policy: Annotated[
        str,
        Setting(
            "The policy: gateway asks the model behind the gateway; MODULE:NAME is a function of a task that returns a "
            "policy.",
            metavar="gateway|MODULE:NAME",
        ),
    ] = GATEWAY
    model_dir: Annotated[
        Path | None,
        Setting(
            "Directory with the model's tokenizer and chat template, or bytes: replies are generated token-exact, "
            "without a gateway.",
            metavar="DIR|bytes",
            default_text="none",
            path=PathRule(file=False),
        ),
    ] = None
    agent: Annotated[
        str | None,
        Setting(
            "Shell command of an agent, run in each sandbox with the gateway's base URL and a key in its environment, "
            "instead of a policy.",
            metavar="COMMAND",
            default_text="none",
        ),
    ] = None
    max_turns: Annotated[int, Setting("The most replies of an episode.", least=1)] = 16
    max_tokens: Annotated[int, Setting("The most new tokens of a reply.", least=1)] = _DEFAULT_REPLY_TOKENS
    max_total_tokens: Annotated[
        int | None,
        Setting("With --model-dir: the most tokens of a conversation.", default_text="the engine's", least=1),
    ] = None
    temperature: Annotated[
        float | None, Setting("0 is greedy.", default_text="the model's own distribution", least=0)
    ] = None
    top_p: Annotated[float | None, Setting("Nucleus mass.", default_text="off", least=0)] = None
    top_k: Annotated[int | None, Setting("Keep the most likely tokens; 0 is all.", default_text="off", least=0)] = None
    results: Annotated[
        Path | None,
        Setting(
            "File with one line of JSON for each task and trial; an interrupted evaluation continues from it.",
            metavar="FILE.jsonl",
            default_text="none is kept",
            path=PathRule(file=True, directory=False),
        ),
    ] = None
    infra_retries: Annotated[
        int,
        Setting("The most repeats of a trajectory that the service lost.", metavar="TIMES", least=0),
    ] = 2
    deadline: Annotated[
        float,
        Setting(
            "The most time of an episode from its reset to the end of its reward, queues left out.",
            metavar="SECONDS",
            least=1,
        ),
    ] = 3600.0
    truncate: Annotated[
        bool, Setting("Score an episode at the end of its time; otherwise it counts as 0, as a time-out.")
    ] = False
    pass_at: Annotated[float, Setting("The least score of a trial that has passed.", metavar="SCORE")] = 1.0
    job: Annotated[str | None, Setting("Id of the job to open.", metavar="ID", default_text="a new one")] = None
    scheduler: Address = DEFAULT_ADDRESS
    retry_pause_s: Annotated[float, AtLeast(0)] = 5.0

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        check_least(self)
        chosen = [self.policy != GATEWAY, self.model_dir is not None, self.agent is not None]
        if sum(chosen) > 1:
            raise ValueError("policy: at most one of policy, model_dir and agent is given: they all say who replies")

    @property
    def replies(self) -> dict[str, str | int | float]:
        """Returns the settings of the policy that replies, which results of one file share. Defaults are left out."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name in _REPLIES}
        defaults = {each.name: each.default for each in fields(self)}
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in given.items()
            if value != defaults[name]
        }
