"""Results of trials, the file that keeps them, and their figures.

The file has one line a result, on disk before the next trial may count as done.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO, Final, TypeAlias

from callsheet.environments import EpisodeRecord, EpisodeTask

SCORED: Final = "scored"
FAILED: Final = "failed"
_DIGEST: Final = 16
_LINE_BEGINS: Final = b'{"task":'
TrialKey: TypeAlias = tuple[str, int]
"""A task's id and the number of the trial, from 0."""


class ResultsFileError(ValueError):
    """A results file cannot be gone on with. The message names file, line and rule."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Values that all results of one evaluation share.

    Attributes:
        environment: The task set's name.
        options: The task set's options.
        replies: The policy and its settings: `EvaluationSettings.replies`.
    """

    environment: str
    options: Mapping[str, Any] = field(default_factory=dict)
    replies: Mapping[str, Any] = field(default_factory=dict)

    def by_name(self) -> dict[str, Any]:
        """Returns each part by its name, for messages."""
        parts = {"options": self.options, "replies": self.replies}
        named = {f"{what}.{name}": value for what, values in parts.items() for name, value in values.items()}
        return {"environment": self.environment} | named


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """Result of one trial. It is one line of the results file.

    Attributes:
        task: The task's id.
        trial: Its number, from 0.
        environment: The task set's name.
        options: The task set's options.
        replies: The policy and its settings: `EvaluationSettings.replies`.
        status: "scored", or "failed" if the model failed; else the failure shows nothing about the model, and this is
            its kind in lower case: "infra" for the service, "env" for the task.
        score: The score; None unless it was scored.
        components: Named parts of the score.
        said: The last lines that the tests of a scored trial printed, if its environment gives them.
        failure: Kind, reason and message; None if it was scored.
        end: How the episode ended.
        turns: Replies.
        cut_replies: 1 if a limit of tokens cut the last reply.
        seconds: Wall-clock time of the last trajectory.
        trajectory: The last trajectory's id.
        lost: Reasons why earlier trajectories of the trial were lost, as "KIND reason: message".
        messages: The conversation as far as it went. It is only in the file.
        task_digest: Digest that shows if the task of this id is still the same.
    """

    task: str
    trial: int
    environment: str
    options: Mapping[str, Any] = field(default_factory=dict)
    replies: Mapping[str, Any] = field(default_factory=dict)
    status: str
    score: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    said: str = ""
    failure: Mapping[str, str] | None = None
    end: str = ""
    turns: int = 0
    cut_replies: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    trajectory: str = ""
    lost: Sequence[str] = ()
    messages: Sequence[Mapping[str, Any]] = ()
    task_digest: str = ""

    @property
    def key(self) -> TrialKey:
        """Returns the key of the trial."""
        return self.task, self.trial

    @property
    def is_excluded(self) -> bool:
        """Returns whether the trial shows nothing about the model: it has no score, and the model did not fail."""
        return self.status not in (SCORED, FAILED)


def result_of(record: EpisodeRecord, trial: int, evaluated: Evaluated, lost: Sequence[str]) -> TrialResult:
    """Returns the result that an episode is."""
    failure, score = record.failure, record.score
    return TrialResult(
        task=record.task.task_id,
        trial=trial,
        environment=evaluated.environment,
        options=evaluated.options,
        replies=evaluated.replies,
        status=_status(record),
        score=score.value if score is not None else None,
        components=dict(score.components) if score is not None else {},
        said=score.said if score is not None else "",
        failure=None
        if failure is None
        else {"kind": failure.kind.name, "reason": failure.reason, "message": failure.message},
        end=record.end.value,
        turns=record.turns,
        cut_replies=record.cut_replies,
        seconds={name: round(value, 4) for name, value in asdict(record.seconds).items()},
        trajectory=record.trajectory_id,
        lost=tuple(lost),
        messages=tuple(map(_plain, record.messages)),
        task_digest=digest_of(record.task),
    )


def digest_of(task: EpisodeTask) -> str:
    """Returns a digest of what a task holds besides its id; of files that it names, their paths."""
    return hashlib.sha256(json.dumps(task.data, sort_keys=True, default=repr).encode()).hexdigest()[:_DIGEST]


def _status(record: EpisodeRecord) -> str:
    if record.failure is None:
        return SCORED
    return record.failure.kind.value if record.tells_nothing else FAILED


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a message as JSON can hold it."""
    try:
        plain: Mapping[str, Any] = json.loads(json.dumps(message, default=repr))
    except (RecursionError, ValueError, TypeError) as error:
        return {"role": message.get("role"), "content": f"left out, as JSON cannot hold it: {type(error).__name__}"}
    return plain


class ResultsFile:
    """An open results file, locked for its writer.

    Attributes:
        found: The results that were there when it was opened.
    """

    def __init__(self, file: BinaryIO, found: Sequence[TrialResult]) -> None:
        self.found = tuple(found)
        self._file = file

    def add(self, result: TrialResult) -> None:
        """Appends a line; it is on disk when this returns."""
        self._file.write(json.dumps(asdict(result), separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def open_results(path: Path) -> Iterator[ResultsFile]:
    """Opens a results file, or makes one. A last line that was torn by a crash is dropped.

    Raises:
        ResultsFileError: It has a line that is no result, two results of one trial, or another writer.
        OSError: It cannot be read or written.
    """
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultsFileError(f"{path}: another evaluation writes it") from None
        file.seek(0)
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        found = read_results(whole, str(path))
        torn = content[len(whole) :]
        if torn[: len(_LINE_BEGINS)] != _LINE_BEGINS[: len(torn)]:
            # Nothing is cut from a file that an evaluation did not write.
            raise ResultsFileError(f"{path}: its last line is no result of an evaluation: take another file")
        file.truncate(len(whole))
        yield ResultsFile(file, found)


def read_results(content: bytes, name: str) -> list[TrialResult]:
    """Returns the results of whole lines. Pure.

    Raises:
        ResultsFileError: A line is no result, or there are two of one trial.
    """
    results: list[TrialResult] = []
    seen: set[TrialKey] = set()
    for number, line in enumerate(content.splitlines(), 1):
        try:
            result = TrialResult(**(json.loads(line) | {"messages": ()}))
        except (ValueError, TypeError) as error:
            raise ResultsFileError(f"{name}, line {number}: it is no result of an evaluation: {error}") from None
        if result.key in seen:
            raise ResultsFileError(f"{name}, line {number}: a second result of task {result.task!r}, {result.trial}")
        seen.add(result.key)
        results.append(result)
    return results


def check_same_tasks(found: Sequence[TrialResult], tasks: Sequence[EpisodeTask]) -> None:
    """Checks that results are of tasks as they are now; raises ResultsFileError for one that has changed."""
    known = {task.task_id: digest_of(task) for task in tasks}
    for result in found:
        if result.task_digest != known.get(result.task, result.task_digest):
            raise ResultsFileError(f"results: task {result.task!r} has changed since: take another file")


def check_same(found: Sequence[TrialResult], evaluated: Evaluated) -> None:
    """Checks that results are of the same evaluation.

    Raises:
        ResultsFileError: They are of another environment, of other options, or of replies made otherwise.
    """
    here = evaluated.by_name()
    for result in found:
        there = Evaluated(result.environment, result.options, result.replies).by_name()
        for name in sorted(here.keys() | there.keys()):
            if here.get(name) != there.get(name):
                was, given = there.get(name, "absent"), here.get(name, "absent")
                raise ResultsFileError(f"results: their {name} is {was!r}, not {given!r}: take another file")


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """Figures of all results.

    Attributes:
        environment: The task set's name.
        results: All of them.
        scored: Those with a score.
        failed: Those where the model failed; each counts as a score of 0.
        excluded: Those without a word on the model, by failures of the service or of the task; in no mean.
        mean_score: Over scored and failed ones; None where there is none.
        pass_share: Share of these that passed.
        mean_turns: Replies of an episode.
        cut_replies: Episodes whose last reply a limit of tokens cut, over all results.
        components: Means of the scores' named parts.
        failures: Failed and excluded ones, by "KIND/reason".
        seconds: Mean wall-clock seconds of an episode, by where they went.
        lost_trajectories: Trajectories that were lost to the service and tried again.
    """

    environment: str
    results: int
    scored: int
    failed: int
    excluded: int
    mean_score: float | None
    pass_share: float | None
    mean_turns: float | None
    cut_replies: int
    components: Mapping[str, float]
    failures: Mapping[str, int]
    seconds: Mapping[str, float]
    lost_trajectories: int

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return asdict(self)


def summarise(environment: str, results: Sequence[TrialResult], pass_at: float) -> EvaluationSummary:
    """Returns the figures.

    Args:
        environment: The task set's name.
        results: All results.
        pass_at: The score from which on a trial has passed.
    """
    counted = [each for each in results if not each.is_excluded]
    scored = [each for each in counted if each.score is not None]
    named = {name for each in scored for name in each.components}
    failures = Counter(f"{each.failure['kind']}/{each.failure['reason']}" for each in results if each.failure)
    phases = [name for each in results[:1] for name in each.seconds]
    return EvaluationSummary(
        environment=environment,
        results=len(results),
        scored=sum(each.status == SCORED for each in results),
        failed=sum(each.status == FAILED for each in results),
        excluded=len(results) - len(counted),
        mean_score=_mean([each.score or 0.0 for each in counted]),
        pass_share=_mean([float(each.score is not None and each.score >= pass_at) for each in counted]),
        mean_turns=_mean([float(each.turns) for each in counted]),
        cut_replies=sum(each.cut_replies for each in results),
        components={
            name: fmean(each.components[name] for each in scored if name in each.components) for name in sorted(named)
        },
        failures=dict(failures.most_common()),
        seconds={name: fmean(each.seconds.get(name, 0.0) for each in results) for name in phases},
        lost_trajectories=sum(len(each.lost) for each in results),
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
